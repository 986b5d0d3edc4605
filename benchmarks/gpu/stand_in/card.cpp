// A stand-in for a CUDA card: tensors say `cuda:0`, live in main memory, and are computed on by the CPU's kernels.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <set>

namespace {

using torch::jit::Stack;

const c10::Device kCard(c10::DeviceType::CUDA, 0);

// ---- memory: counted, and bounded by a fence

std::atomic<int64_t> allocated{0}, peak{0}, fence{INT64_MAX};

struct Block {
  void* data;
  int64_t size;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated -= block->size;
  c10::GetDefaultCPUAllocator()->raw_deallocate(block->data);
  delete block;
}

struct CardAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) {
      return {nullptr, kCard};
    }
    const auto rounded = static_cast<int64_t>((size + 511) / 512 * 512);
    const auto now = allocated += rounded;
    if (now > fence) {
      allocated -= rounded;
      C10_THROW_ERROR(
          OutOfMemoryError,
          c10::str("CUDA out of memory. Tried to allocate ", rounded, " bytes; ", now - rounded, " of ", fence.load(),
                   " are taken (stand-in card)"));
    }
    for (auto seen = peak.load(); now > seen && !peak.compare_exchange_weak(seen, now);) {
    }
    void* data = c10::GetDefaultCPUAllocator()->raw_allocate(rounded);
    return {data, new Block{data, rounded}, &release, kCard};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }
};

CardAllocator card_allocator;

// ---- the generator: a CPU's behind the name of the card's

struct CardGenerator final : c10::GeneratorImpl {
  explicit CardGenerator(at::Generator inner)
      : c10::GeneratorImpl(kCard, c10::DispatchKeySet(c10::DispatchKey::CUDA)), inner(std::move(inner)) {}
  void set_current_seed(uint64_t seed) override {
    inner.set_current_seed(seed);
  }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override {
    return 0;
  }
  uint64_t current_seed() const override {
    return inner.current_seed();
  }
  uint64_t seed() override {
    return inner.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  CardGenerator* clone_impl() const override {
    return new CardGenerator(inner.clone());
  }
  at::Generator inner;
};

at::Generator new_generator() {
  return at::Generator(c10::make_intrusive<CardGenerator>(at::detail::createCPUGenerator()));
}

const at::Generator& default_generator() {
  static at::Generator* one = new at::Generator(new_generator());
  return *one;
}

// ---- the device

struct CardGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return c10::DeviceType::CUDA;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return kCard;
  }
  c10::Device getDevice() const override {
    return kCard;
  }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kCard);
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, kCard);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return c10::Stream(c10::Stream::DEFAULT, kCard);
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kCard);
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

}  // namespace

namespace at {
struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    return default_generator();
  }
  Generator getNewGenerator(DeviceIndex) const override {
    return new_generator();
  }
  Device getDeviceFromPtr(void*) const override {
    return kCard;
  }
  bool hasCUDA() const override {
    return true;
  }
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex current_device() const override {
    return 0;
  }
  DeviceIndex deviceCount() const override {
    return 1;
  }
  DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override {
    return 0;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override {
    return 0;
  }
  Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetDefaultCPUAllocator();
  }
  Allocator* getCUDADeviceAllocator() const override {
    return &card_allocator;
  }
  int getNumGPUs() const override {
    return 1;
  }
  void deviceSynchronize(DeviceIndex) const override {}
};
REGISTER_CUDA_HOOKS(CUDAHooks);

// PyTorch asks at compile time whether there is CUDA: this library is loaded before it, and answers in its place.
namespace accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) {
  return c10::DeviceType::CUDA;
}
}  // namespace accelerator
}  // namespace at

namespace {

C10_REGISTER_GUARD_IMPL(CUDA, CardGuard);

// ---- every operator: on the CPU, over the same memory

at::Tensor alias_of(const at::Tensor& card) {
  auto whole = card.storage();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), whole.nbytes(),
      c10::DataPtr(whole.mutable_data(), c10::Device(c10::DeviceType::CPU)), c10::GetDefaultCPUAllocator(),
      /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), card.dtype());
  auto* made = tensor.unsafeGetTensorImpl();
  made->set_sizes_and_strides(card.sizes(), card.strides(), card.storage_offset());
  if (card.is_conj()) {
    tensor._set_conj(true);
  }
  if (card.unsafeGetTensorImpl()->is_wrapped_number()) {
    made->set_wrapped_number(true);
  }
  return tensor;
}

at::Tensor on_card(const c10::Storage& storage, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

c10::Storage moved(const c10::Storage& from) {
  auto data = card_allocator.allocate(from.nbytes());
  if (from.nbytes() > 0) {
    std::memcpy(data.get(), from.data(), from.nbytes());
  }
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), from.nbytes(), std::move(data), &card_allocator, true));
}

// Where a number on the CPU may not stand beside tensors on a card.
const std::set<std::string> kNoNumbers = {
    "aten::cat", "aten::gather", "aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_",
    "aten::index_select", "aten::index_copy", "aten::index_copy_", "aten::index_add", "aten::index_add_",
    "aten::searchsorted", "aten::mm", "aten::bmm", "aten::addmm", "aten::masked_scatter", "aten::masked_scatter_",
    "aten::embedding", "aten::take", "aten::masked_select", "aten::isin"};
// Where indices may stand on the CPU.
const std::set<std::string> kIndices = {"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put",
                                        "aten::_unsafe_index", "aten::_unsafe_index_put"};

struct Call {
  const c10::OperatorHandle& op;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  // on the card, its alias
  std::vector<at::Tensor> strangers;                     // CPU tensors with dimensions

  at::Tensor in(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() == c10::DeviceType::Meta) {
      return tensor;
    }
    if (tensor.is_cuda()) {
      for (auto& [card, alias] : pairs) {
        if (card.is_same(tensor)) {
          return alias;
        }
      }
      pairs.emplace_back(tensor, alias_of(tensor));
      return pairs.back().second;
    }
    if (tensor.dim() > 0 || kNoNumbers.count(op.schema().name())) {
      strangers.push_back(tensor);
    }
    return tensor;
  }

  at::Tensor out(const at::Tensor& result) {
    if (!result.defined() || !result.is_cpu()) {
      return result;
    }
    for (auto& [card, alias] : pairs) {
      if (alias.is_same(result)) {
        return card;
      }
    }
    for (auto& [card, alias] : pairs) {
      if (result.has_storage() && alias.storage().unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl()) {
        // A view belongs to autograd as its base does, in inference mode, too.
        auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(card.storage()),
                                                             card.key_set(), result.dtype());
        view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
        return view;
      }
    }
    return on_card(moved(result.storage()), result);
  }

  void settle() {
    for (auto& [card, alias] : pairs) {
      if (alias.storage().data() != card.storage().data()) {  // it has grown
        card.storage().unsafeGetStorageImpl()->set_data_ptr(card_allocator.allocate(alias.storage().nbytes()));
        card.storage().unsafeGetStorageImpl()->set_nbytes(alias.storage().nbytes());
        std::memcpy(card.storage().mutable_data(), alias.storage().data(), alias.storage().nbytes());
      }
      if (alias.sizes() != card.sizes() || alias.strides() != card.strides() ||
          alias.storage_offset() != card.storage_offset()) {
        card.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
      }
    }
  }
};

void on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  auto arguments = torch::jit::last(stack, count);
  Call call{op, {}, {}};
  bool wants_card = false;
  for (size_t at = 0; at < count; ++at) {
    auto& value = (*stack)[stack->size() - count + at];
    if (value.isTensor()) {
      value = call.in(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) {
        list.push_back(call.in(one));
      }
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (std::optional<at::Tensor> one : value.toOptionalTensorList()) {
        list.push_back(one ? std::optional<at::Tensor>(call.in(*one)) : one);
      }
      value = list;
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      value = c10::Device(c10::DeviceType::CPU);
      wants_card = true;
    } else if (value.isGenerator()) {
      auto generator = value.toGenerator();
      TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
                  generator.device(), "' in ", schema.name());
      value = static_cast<CardGenerator*>(generator.unsafeGetGeneratorImpl())->inner;
    } else if (value.isNone() && schema.arguments()[at].type()->str().find("Generator") != std::string::npos) {
      value = static_cast<CardGenerator*>(default_generator().unsafeGetGeneratorImpl())->inner;
    }
  }
  if (!call.strangers.empty() && !kIndices.count(schema.name())) {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
                " (", schema.name(), ", a tensor of shape ", call.strangers[0].sizes(), " is on the CPU)");
  }
  TORCH_CHECK(!call.pairs.empty() || wants_card, "stand-in card: ", schema.name(), " has nothing on the card");
  (void)arguments;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const auto returns = schema.returns().size();
  for (size_t at = 0; at < returns; ++at) {
    auto& value = (*stack)[stack->size() - returns + at];
    if (value.isTensor()) {
      value = call.out(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) {
        list.push_back(call.out(one));
      }
      value = list;
    }
  }
  call.settle();
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &card_allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &card_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  at::Tensor to = self.is_cuda() ? alias_of(self) : self;
  to.copy_(from.is_cuda() ? alias_of(from) : from, non_blocking);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  TORCH_CHECK(storage.device().is_cuda(), "Attempted to set the storage of a tensor on cuda:0 to one on ",
              storage.device());
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                              offset.guard_int(__FILE__, __LINE__));
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const auto length = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(storage), 0, std::vector<c10::SymInt>{length}, std::vector<c10::SymInt>{1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(), source.sym_strides());
}

int64_t sdp_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double,
                   bool, std::optional<double>, bool) {
  return 0;  // the formula as it is written
}

// A product in 16 bits that is added up in 32, which only CUDA has.
at::Tensor& addmm_dtype(const at::Tensor& self, const at::Tensor& left, const at::Tensor& right, at::ScalarType dtype,
                        const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  const auto product = at::mm(alias_of(left).to(dtype), alias_of(right).to(dtype));
  alias_of(out).copy_(alias_of(self).mul(beta).add_(product, alpha));
  return out;
}

// Counts of whole numbers, which the CPU has of floating ones only.
at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& low, const at::Scalar& high) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  const auto found = alias_of(self).to(at::kDouble).histc(bins, low, high).to(self.scalar_type());
  return on_card(moved(found.storage()), found);
}

void record_stream(at::Tensor&, c10::Stream) {}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("copy_", TORCH_FN(copy));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("_fused_sdp_choice", TORCH_FN(sdp_choice));
  m.impl("addmm.dtype_out", TORCH_FN(addmm_dtype));
  m.impl("histc", TORCH_FN(histc));
  m.impl("record_stream", TORCH_FN(record_stream));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(c10::DeviceType::CUDA, &card_allocator);
  m.def("allocated", [] { return allocated.load(); });
  m.def("peak", [] { return peak.load(); });
  m.def("reset_peak", [] { peak = allocated.load(); });
  m.def("set_fence", [](int64_t most) { fence = most; });
  m.def("fence", [] { return fence.load(); });
  m.def("generator", [] { return default_generator(); });
}
