#include "device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "worker/src/calls/ship.h"
#include "storage.h"

namespace singularity {
namespace {

using at::Tensor;

c10::Device cuda(int index) { return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)); }

// A generator whose state lives in the proxy; the worker holds its id.
struct ProxiedGenerator final : c10::GeneratorImpl {
  ProxiedGenerator(Channel& c, uint64_t id)
      : GeneratorImpl(cuda(c.index), c10::DispatchKeySet(c10::DispatchKey::CUDA)), channel(c), id(id) {}
  ~ProxiedGenerator() override {
    if (id && channel.is_open()) channel.free_storage({kGeneratorId | id, nullptr, 0});
  }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    if (id == 0 && !(channel.is_open() && channel.attached())) {
      channel.seed_pending.store(true);  // seeding alone (torch.manual_seed) must not take a device
      return;
    }
    Locked lock(channel);
    channel.flush_frees();  // of generators that are gone, though nothing is ever drawn
    write_seed();
  }
  // Only Philox, the generator of a GPU, has an offset, and its place in the state is the GPU's affair.
  void set_offset(uint64_t) override { no_offset(); }
  uint64_t get_offset() const override { return no_offset(); }
  void graphsafe_set_state(const c10::intrusive_ptr<GeneratorImpl>&) override { no_graphs(); }
  c10::intrusive_ptr<GeneratorImpl> graphsafe_get_state() const override { return no_graphs(); }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    const uint64_t s = c10::detail::getNonDeterministicRandom();
    set_current_seed(s);
    return s;
  }
  void set_state(const c10::TensorImpl& state) override {
    const uint64_t n = state.numel();
    Locked lock(channel);
    RecordHeader* r = channel.begin(Kind::set_rng, kReply, 8 + n);
    r->base = id;
    std::memcpy(r + 1, &n, 8);
    std::memcpy(reinterpret_cast<char*>(r + 1) + 8, state.data(), n);
    channel.send(r);
    Reply reply = channel.receive();
    seed_ = reply.body.get<uint64_t>();
    channel.finish(reply);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    Locked lock(channel);
    RecordHeader* r = channel.begin(Kind::get_rng, kReply, 0);
    r->base = id;
    channel.send(r);
    Reply reply = channel.receive();
    seed_ = reply.body.get<uint64_t>();
    const int64_t n = static_cast<int64_t>(reply.bytes) - 8;
    Tensor state = at::detail::empty_cpu({n}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), reply.body.at(), n);
    channel.finish(reply);
    return state.getIntrusivePtr();
  }
  ProxiedGenerator* clone_impl() const override;

  // Under the channel's lock.
  void write_seed() const {
    RecordHeader* r = channel.begin(Kind::seed, 0, 8);
    r->base = id;
    std::memcpy(r + 1, &seed_, 8);
    channel.send(r);
  }

  Channel& channel;
  const uint64_t id;

 private:
  [[noreturn]] static uint64_t no_offset() {
    TORCH_CHECK(false, "the generator of a proxied device has no offset: use get_state and set_state");
    std::abort();  // TORCH_CHECK threw
  }
  [[noreturn]] static c10::intrusive_ptr<GeneratorImpl> no_graphs() {
    TORCH_CHECK(false, "CUDA graphs are not supported on a proxied device, and so is no generator state for them: "
                       "use get_state and set_state");
    std::abort();
  }
  mutable uint64_t seed_ = 67280421310721ull;  // at::detail::default_rng_seed_val
};

std::atomic<uint64_t> next_generator{1};

at::Generator new_generator(int index) {
  return at::make_generator<ProxiedGenerator>(channel(index < 0 ? current_device() : index), next_generator++);
}

ProxiedGenerator* ProxiedGenerator::clone_impl() const {
  auto* copy = new ProxiedGenerator(channel, next_generator++);
  copy->set_state(*get_state());
  return copy;
}

thread_local std::array<int64_t, kMaxDevices> current_stream{};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return c10::kCUDA; }
  at::Device exchangeDevice(at::Device d) const override { return cuda(exchange_device(d.index())); }
  at::Device getDevice() const override { return cuda(current_device()); }
  void setDevice(at::Device d) const override { exchange_device(d.index()); }
  void uncheckedSetDevice(at::Device d) const noexcept override {
    if (d.index() >= 0 && d.index() < singularity::device_count()) exchange_device(d.index());
  }
  c10::Stream getStream(at::Device d) const override {
    const int i = d.has_index() ? d.index() : current_device();
    return c10::Stream(c10::Stream::UNSAFE, cuda(i), current_stream[i]);
  }
  c10::Stream getDefaultStream(at::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getNewStream(at::Device d, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, cuda(d.has_index() ? d.index() : current_device()), new_stream());
  }
  c10::Stream getStreamFromGlobalPool(at::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    const int i = s.device_index();
    const c10::Stream old(c10::Stream::UNSAFE, cuda(i), current_stream[i]);
    current_stream[i] = s.id();
    return old;
  }
  at::DeviceIndex deviceCount() const noexcept override { return static_cast<at::DeviceIndex>(singularity::device_count()); }

  void record(void** event, const c10::Stream& stream, at::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event();
    record_event(*static_cast<Event*>(*event), stream.device_index());
  }
  void block(void*, const c10::Stream&) const override {}  // one in-order queue: already ordered
  bool queryEvent(void* event) const override { return !event || event_done(*static_cast<Event*>(event)); }
  void destroyEvent(void* event, const at::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  bool queryStream(const c10::Stream& s) const override {
    Channel& c = channel(s.device_index());
    return !c.is_open() || c.header()->done_seq.load() >= c.seq;
  }
  void synchronizeStream(const c10::Stream& s) const override { synchronize(s.device_index()); }
  void synchronizeEvent(void* event) const override {
    if (event) wait_for_event(*static_cast<Event*>(event));
  }
  void synchronizeDevice(at::DeviceIndex index) const override { synchronize(index); }
  double elapsedTime(void* first, void* second, at::DeviceIndex) const override {
    return elapsed_ms(*static_cast<Event*>(first), *static_cast<Event*>(second));
  }
};

uint64_t cudnn_version() {  // of the physical device; 0: it has none, or no proxy was there yet to tell
  if (proxy_is_cpu()) return 0;
  const Channel& c = channel(singularity::current_device());
  return c.is_open() ? c.header()->cudnn_version.load(std::memory_order_relaxed) : 0;
}
std::atomic<int64_t> fft_plans{4096};  // of a cache that is the proxy's: kept to be read back

// Written over the process's hooks object with placement new (it may exist already), hence no data.
struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  const at::Generator& getDefaultGenerator(at::DeviceIndex i) const override { return default_generator(i < 0 ? singularity::current_device() : i); }
  at::Generator getNewGenerator(at::DeviceIndex i) const override { return new_generator(i); }
  at::Device getDeviceFromPtr(void*) const override { return cuda(singularity::current_device()); }
  bool isPinnedPtr(const void* p) const override { return is_pinned(p); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return expected_device_count() > 0; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::DeviceIndex deviceCount() const override { return static_cast<at::DeviceIndex>(singularity::device_count()); }
  void setCurrentDevice(at::DeviceIndex i) const override { exchange_device(i); }
  at::DeviceIndex getCurrentDevice() const override { return static_cast<at::DeviceIndex>(singularity::current_device()); }
  at::DeviceIndex exchangeDevice(at::DeviceIndex i) const override { return static_cast<at::DeviceIndex>(exchange_device(i)); }
  at::DeviceIndex maybeExchangeDevice(at::DeviceIndex i) const override { return static_cast<at::DeviceIndex>(exchange_device(i)); }
  bool hasCUDA() const override { return expected_device_count() > 0; }
  at::DeviceIndex current_device() const override { return getCurrentDevice(); }
  at::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  int getNumGPUs() const override { return singularity::device_count(); }
  void deviceSynchronize(at::DeviceIndex i) const override { synchronize(i); }
  std::string showConfig() const override { return "device proxy"; }
  long versionCUDART() const override { return 0; }
  // Composite operators choose by these between cuDNN's kernels and others: they follow the device.
  bool hasCuDNN() const override { return cudnn_version() != 0; }
  bool compiledWithCuDNN() const override { return cudnn_version() != 0; }
  long versionCuDNN() const override { return static_cast<long>(cudnn_version()); }
  bool supportsDilatedConvolutionWithCuDNN() const override { return cudnn_version() != 0; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return cudnn_version() != 0; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
  // These are in some versions of torch only, hence not marked as overriding.
  virtual long versionRuntimeCuDNN() const { return static_cast<long>(cudnn_version()); }
  virtual long versionCuDNNFrontend() const { return static_cast<long>(cudnn_version()); }
  virtual bool supportsBFloat16ConvolutionWithCuDNNv8() const { return cudnn_version() != 0; }
  virtual bool supportsBFloat16RNNWithCuDNN() const { return cudnn_version() != 0; }
  // What user code may ask for; whether the device has it is the proxy's affair (native/settings.cpp).
  bool hasMAGMA() const override { return true; }
  virtual bool hasCuSOLVER() const { return true; }
  virtual bool hasCuBLASLt() const { return true; }
  int64_t cuFFTGetPlanCacheMaxSize(at::DeviceIndex) const override { return fft_plans.load(); }
  void cuFFTSetPlanCacheMaxSize(at::DeviceIndex, int64_t plans) const override {
    TORCH_CHECK(plans >= 0, "the cache of FFT plans cannot hold ", plans, " plans");
    fft_plans.store(plans);
  }
  int64_t cuFFTGetPlanCacheSize(at::DeviceIndex) const override { return 0; }
  void cuFFTClearPlanCache(at::DeviceIndex) const override {}
};

}  // namespace

void install_device() {
  static Guard guard;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kCUDA)].store(&guard);
  c10::SetAllocator(c10::kCUDA, device_allocator());
  auto& hooks = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
  new (static_cast<void*>(&hooks)) Hooks();
}

const at::Generator& default_generator(int index) {
  static auto& all = *new std::vector<at::Generator>([] {
    std::vector<at::Generator> made;
    for (int i = 0; i < device_count(); i++) made.push_back(at::make_generator<ProxiedGenerator>(channel(i), 0));
    return made;
  }());
  channel(index);
  return all[index];
}

at::Generator copy_generator(const at::Generator& from, int index) {
  at::Generator copy = new_generator(index);
  copy.set_state(from.get_state());
  return copy;
}

uint64_t generator_id(const at::Generator& generator, const Channel& c) {
  auto* g = dynamic_cast<ProxiedGenerator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(g, "Expected a 'cuda' device type for generator but found '", generator.device(), "'");
  TORCH_CHECK(g->channel.index == c.index, "Expected a generator of cuda:", c.index, " but found one of ", generator.device());
  return g->id;
}

void write_default_seed(Channel& c) {
  static_cast<ProxiedGenerator*>(default_generator(c.index).unsafeGetGeneratorImpl())->write_seed();
}

void synchronize(int index) {
  Channel& c = channel(index < 0 ? current_device() : index);
  if (!c.is_open()) return;  // nothing was ever asked of it
  if (!c.attached() && c.header()->done_seq.load() >= c.seq) {
    Locked lock(c, false);  // parked with nothing to do: needs no device, only a late error may wait
    c.raise_async_error();
    return;
  }
  Locked lock(c);
  c.flush_frees();
  RecordHeader* r = c.begin(Kind::sync, kReply, 0);
  c.send(r);
  c.finish(c.receive());
  c.raise_async_error();
}

int64_t stream_of(int index) { return current_stream.at(index < 0 ? current_device() : index); }
void set_stream(int index, int64_t stream) { current_stream.at(index) = stream; }
int64_t new_stream() {
  static std::atomic<int64_t> next{1};
  return next++;
}

void record_event(Event& event, int index) {
  static std::atomic<uint64_t> next{1};
  Channel& c = channel(index < 0 ? current_device() : index);
  if (!event.id) event.id = next++;
  event.channel = &c;
  Locked lock(c);
  RecordHeader* r = c.begin(Kind::event_record, 0, 0);
  r->base = event.id;
  event.seq = r->seq;
  c.send(r);
}

void wait_for_event(const Event& event) {
  if (event.channel && !event_done(event)) synchronize(event.channel->index);
}

bool event_done(const Event& event) {
  return !event.channel || event.channel->header()->done_seq.load() >= event.seq;
}

double elapsed_ms(const Event& first, const Event& second) {
  TORCH_CHECK_VALUE(first.channel && second.channel, "Both events must be recorded before calculating elapsed time.");
  TORCH_CHECK_VALUE(first.channel == second.channel, "Both events must be recorded on the same device.");
  Channel& c = *first.channel;
  Locked lock(c);
  RecordHeader* r = c.begin(Kind::event_time, kReply, 8);
  r->base = first.id;
  std::memcpy(r + 1, &second.id, 8);
  c.send(r);
  Reply reply = c.receive();
  const double ms = reply.body.get<double>();
  c.finish(reply);
  return ms;
}

}  // namespace singularity
