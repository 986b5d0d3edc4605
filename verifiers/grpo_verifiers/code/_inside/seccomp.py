"""The system-call filter of programs: what reaches other processes, the network or the kernel's far corners fails."""

import ctypes
import errno
import platform
import struct
from collections.abc import Callable

_ARCHES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_NEWEST = 462
"""System calls above this number did not exist when the list was made: they answer ENOSYS, as on an older kernel."""
_NAMESPACES = 0x7E020080
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_BLOCK = 11

# Name: (x86_64, aarch64), -1 where the machine has none.
_DENIED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "socket": (41, 198),
    "bind": (49, 200),
    "connect": (42, 203),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "modify_ldt": (154, -1),
    "personality": (135, 92),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setgroups": (116, 159),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "capset": (126, 91),
    "uselib": (134, -1),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setaffinity": (203, 122),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "vmsplice": (278, 75),
    "io_setup": (206, 0),
    "sync": (162, 81),
    "syncfs": (306, 267),
}
# Without namespaces of its own a program may signal nothing, and must not change what Landlock leaves open to the owner
# of a file: its mode, owner, times, attributes and, on older kernels, length; nor watch what happens to files outside.
_SHARED = {
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "fchown": (93, 55),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "utime": (132, -1),
    "utimes": (235, -1),
    "futimesat": (261, -1),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "truncate": (76, 45),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "inotify_init": (253, -1),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
}
_CLONE3 = (435, 435)
_LOOKED_INTO = {
    "clone": (56, 220),
    "prlimit": (302, 261),
    "socketpair": (53, 199),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
}
_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x8902
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
"""Ways to have the kernel signal another process, like the two above."""


def build(*, alone: bool) -> Callable[[], None] | None:
    """A function that puts the calling process under the filter; None on a machine that has no list here.

    Args:
        alone: programs have process and mount namespaces of their own.
    """
    known = _ARCHES.get(platform.machine())
    if known is None:
        return None
    arch, column = known
    table = _DENIED if alone else {**_DENIED, **_SHARED}
    numbers = [pair[column] for pair in table.values() if pair[column] >= 0]
    program = _assemble(arch, column, numbers)
    code = ctypes.create_string_buffer(program)
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)

    def apply() -> None:
        # The buffers belong to this closure: the kernel reads them during the call.
        if len(code) and libc.prctl(22, 2, filters, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the system-call filter was refused")

    return apply


def _assemble(arch: int, column: int, numbers: list[int]) -> bytes:
    """The filter as bytes; ``None`` as a target stands for the next line."""
    lines: list[tuple[int, str | None, str | None, int, str]] = []

    def line(code: int, value: int, yes: str | None = None, no: str | None = None, label: str = "") -> None:
        lines.append((code, yes, no, value, label))

    line(_LOAD, 4)
    line(_EQUAL, arch, None, "deny")
    line(_LOAD, 0)
    line(_AT_LEAST, 0x40000000, "deny")
    line(_AT_LEAST, _NEWEST + 1, "unknown")
    targets = dict.fromkeys(numbers, "deny") | {pair[column]: special for special, pair in _LOOKED_INTO.items()}
    targets[_CLONE3[column]] = "unknown"  # its flags lie in memory, where a filter cannot look; libc falls back
    # In blocks that are passed over whole: as a filter is set, the kernel walks it once for every call there is.
    order, past = sorted(targets), ""
    for block in (order[first : first + _BLOCK] for first in range(0, len(order), _BLOCK)):
        line(_AT_LEAST, block[-1] + 1, f"past {block[-1]}", label=past)
        for number in block:
            line(_EQUAL, number, targets[number])
        line(_RETURN, _ALLOW)
        past = f"past {block[-1]}"
    line(_RETURN, _ALLOW, label=past)
    line(_RETURN, _ERRNO | errno.EPERM, label="deny")
    line(_RETURN, _ERRNO | errno.ENOSYS, label="unknown")
    line(_LOAD, 16, label="clone")
    line(_ANY_BIT, _NAMESPACES, "deny_far", "allow_far")
    line(_LOAD, 16, label="prlimit")
    line(_EQUAL, 0, "allow_far", "deny_far")
    line(_LOAD, 16, label="socketpair")
    line(_EQUAL, 1, None, "deny_far")
    # Those of datagrams are not bound to their pair: they reach every socket file and abstract name.
    line(_LOAD, 24)
    line(_AND, 0xF)
    line(_EQUAL, 1, "allow_far")
    line(_EQUAL, 5, "allow_far", "deny_far")
    line(_LOAD, 24, label="ioctl")
    for request in (_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP):
        line(_EQUAL, request, "deny_far")
    line(_RETURN, _ALLOW)
    line(_LOAD, 24, label="fcntl")
    for request in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX):
        line(_EQUAL, request, "deny_far")
    line(_RETURN, _ALLOW, label="allow_far")
    line(_RETURN, _ERRNO | errno.EPERM, label="deny_far")
    places = {label: at for at, (*_, label) in enumerate(lines) if label}

    def jump(at: int, target: str | None) -> int:
        return 0 if target is None else places[target] - at - 1

    return b"".join(
        struct.pack("=HBBI", code, jump(at, yes), jump(at, no), value)
        for at, (code, yes, no, value, _) in enumerate(lines)
    )
