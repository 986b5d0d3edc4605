import math
import pickle
import sys
import textwrap
import traceback

import pytest

from grpo_verifiers.errors import DuplicateNameError, PluginError, UnknownNameError, VerifierError
from grpo_verifiers.registry import Registry, RegistryEntry, import_reference, load_plugin, source_of


def circle(x):
    return x


def square(x):
    return x * x


def make(**builtins):
    return Registry("shape", builtins=builtins)


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_builtins_are_imported_on_first_use_only_and_entries_say_where_names_came_from(write, monkeypatch):
    folder = write("lazy_shapes.py", "def oval(x): return x\n").parent
    monkeypatch.syspath_prepend(str(folder))
    registry = make(oval="lazy_shapes:oval")
    assert "oval" in registry
    assert registry.names() == ["oval"]
    assert "lazy_shapes" not in sys.modules
    assert registry.get("oval")(3) == 3
    assert registry.get("oval") is registry.get("oval")
    registry = make(disc="math:floor")
    registry.register("circle", circle)
    found = registry.entries()
    assert (found[1], found[0].way) == (RegistryEntry("disc", "built-in", "math:floor"), "registered")
    assert found[0].source.endswith(f"test_registry.py:{circle.__code__.co_firstlineno}")
    assert list(registry) == ["circle", "disc"]


def test_an_unknown_name_lists_what_there_is_and_the_nearest():
    registry = make(disc="math:floor")
    registry.register("circle", circle)
    known = r"unknown shape 'cirlce'\. Did you mean 'circle'\? There is: circle, disc\."
    with pytest.raises(UnknownNameError, match=known):
        registry.get("cirlce")
    with pytest.raises(LookupError) as caught:
        registry.get("zzz")
    assert "Did you mean" not in str(caught.value)
    assert "./file.py:attr" in str(caught.value)
    with pytest.raises(UnknownNameError, match=r"chosen by name \(a string\), not int: 3"):
        registry.get(3)


def test_duplicates_show_both_sides():
    registry = make(disc="math:floor")
    with pytest.raises(DuplicateNameError) as caught:
        registry.register("disc", circle)
    assert "math:floor" in str(caught.value)
    assert source_of(circle) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, VerifierError)
    registry = make()
    registry.register("mine", circle)
    registry.register("mine", circle)  # the same definition, as when a cell runs twice
    with pytest.raises(DuplicateNameError, match=r"registered at .*registered again at "):
        registry.register("mine", square)
    assert registry.get("mine") is circle
    registry.unregister("mine")
    registry.register("mine", square)
    assert registry.get("mine") is square


@pytest.mark.parametrize("name", ["", "a b", "3d", "a:b", "./x.py", None, 7])
def test_a_name_that_could_not_be_chosen_is_refused(name):
    with pytest.raises(ValueError, match="is not a name for a shape"):
        make().register(name, circle)


def test_references_are_by_module_or_file_a_plain_name_is_none_and_a_missing_attribute_names_its_nearest(write):
    # A plain name is never a reference, and a reference never a plain name.
    registry = make()
    registry.register("math", circle)
    assert registry.get("math") is circle
    assert registry.get("math:floor") is math.floor
    path = write("attrs.py", "def reward(x): return 1\n")
    with pytest.raises(PluginError, match=r"unknown attribute 'rewrad'\. Did you mean 'reward'\?"):
        import_reference(f"{path}:rewrad")
    path = write("shapes/mine.py", "class Kinds:\n    def one(x): return 1\n\ndef two(x): return 2\n")
    registry = make()
    assert registry.get("os.path:join") is __import__("os").path.join
    assert registry.get(f"{path}:two")(0) == 2
    assert registry.get("./mine.py:Kinds.one", base=path.parent)(0) == 1
    above = registry.get("./shapes/mine.py:two", base=path.parent.parent)
    assert above is registry.get("./mine.py:two", base=path.parent)


def test_a_file_is_imported_once_and_a_relative_reference_means_the_file_beside_its_base(write):
    write("a/mine.py", "def f(x): return 'a'\n")
    b = write("b/mine.py", "def f(x): return 'b'\n").parent
    registry = make()
    assert registry.get("./mine.py:f", base=b.parent / "a")(0) == "a"
    assert registry.get("./mine.py:f", base=b)(0) == "b"
    path = write("once.py", "import itertools\nticks = itertools.count()\ndef f(x): return next(ticks)\n")
    one = load_plugin(str(path))
    two = load_plugin(f"../{path.parent.name}/once.py", base=path.parent)
    assert one is two
    assert pickle.loads(pickle.dumps(one.f)) is one.f


MISSING = {"no/such/file.py": "does not exist: looked at", "no_such_module": "cannot be imported: ModuleNotFoundError"}
MISSING |= dict.fromkeys(("", "a-b", "../x"), "is not a plug-in")


@pytest.mark.parametrize(("reference", "expected"), MISSING.items())
def test_a_plugin_that_is_not_there_says_so(reference, expected):
    with pytest.raises(PluginError, match=expected):
        load_plugin(reference)


BROKEN = {"def f(:\n": SyntaxError, "import no_such_module_xyz\n": ModuleNotFoundError, "1 / 0\n": ZeroDivisionError}


@pytest.mark.parametrize(("text", "kind"), BROKEN.items())
def test_a_broken_plugin_raises_with_its_own_traceback_and_is_not_remembered(write, text, kind):
    path = write("broken.py", text)
    with pytest.raises(PluginError) as caught:
        load_plugin(str(path))
    cause = caught.value.__cause__
    assert isinstance(cause, kind)
    assert str(path) in str(caught.value)
    if kind is not SyntaxError:
        assert str(path) in [frame.filename for frame in traceback.extract_tb(cause.__traceback__)]
    path.write_text("def f(x): return 5\n")
    assert load_plugin(str(path)).f(0) == 5


def test_what_adopt_rejects_is_no_entry_and_a_reference_to_something_registered_gives_that(write):
    def adopt(name, value):
        if not callable(value):
            raise TypeError(f"{name} is no shape")
        return (name, value)

    registry = Registry("shape", builtins={"pi": "math:pi", "floor": "math:floor"}, adopt=adopt)
    assert registry.get("floor")[0] == "floor"
    with pytest.raises(TypeError, match="pi is no shape"):
        registry.get("pi")
    registry = make()
    path = write("decorated.py", "def f(x): return 1\n")
    plugin = load_plugin(str(path))

    class Held:
        fn = staticmethod(plugin.f)

    held = Held()
    registry.register("decorated", held, source=source_of(plugin.f))
    assert registry.get(f"{path}:f") is held


ENTRY_POINTS = """
[test_shapes]
wide = installed_shapes:wide
broken = installed_shapes.broken:gone
"""


@pytest.fixture
def installed(write, monkeypatch):

    def install(name, points=ENTRY_POINTS):
        folder = write(f"{name}/{name}-1.2.dist-info/entry_points.txt", points).parent
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        monkeypatch.syspath_prepend(str(folder.parent))

    write("modules/installed_shapes/__init__.py", "def wide(x): return 'wide'\n")
    write("modules/installed_shapes/broken.py", "import no_such_module_xyz\n")
    monkeypatch.syspath_prepend(str(write("modules/x", "").parent))
    yield install
    for module in [name for name in sys.modules if name.partition(".")[0] == "installed_shapes"]:
        del sys.modules[module]


def grouped(**builtins):
    return Registry("shape", builtins=builtins, group="test_shapes")


def test_an_installed_entry_point_is_found_by_name_and_one_that_does_not_import_is_not_skipped(installed):
    installed("shapes_dist")
    registry = grouped(disc="math:floor")
    assert registry.get("wide")(0) == "wide"
    assert registry.names() == ["broken", "disc", "wide"]
    assert RegistryEntry("wide", "entry point", "installed_shapes:wide (shapes_dist 1.2)") in registry.entries()
    installed("shapes_dist")
    with pytest.raises(PluginError, match=r"'broken' of the installed package shapes_dist 1\.2") as caught:
        grouped().get("broken")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_entry_point_shares_its_name_with_no_other_part_but_one_may_decorate_and_declare(installed, write):
    installed("shapes_dist")
    both = "built in as math:floor, and again as entry point installed_shapes:wide of shapes_dist"
    with pytest.raises(DuplicateNameError, match=both):
        grouped(wide="math:floor").get("wide")
    installed("shapes_dist")
    with pytest.raises(DuplicateNameError, match="entry point installed_shapes:wide"):
        grouped().register("wide", circle)
    installed("shapes_dist")
    registry = grouped()
    import installed_shapes

    registry.register("wide", installed_shapes.wide)
    assert registry.get("wide") is installed_shapes.wide
    assert [entry.way for entry in registry.entries() if entry.name == "wide"] == ["registered"]
    installed("shapes_dist")
    installed("other_dist", "[test_shapes]\nwide = other_shapes:wide\n")
    with pytest.raises(DuplicateNameError, match="two installed packages") as caught:
        grouped().names()
    assert "shapes_dist 1.2" in str(caught.value)
    assert "other_dist 1.2" in str(caught.value)
