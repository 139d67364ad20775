// What a CUDA device offers at run time: events, capture state, memory, identity.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/StringUtil.h>
#include <cudnn.h>

#include <ATen/cuda/CUDAGraphsUtils.cuh>
#include <array>
#include <chrono>
#include <cstdio>
#include <thread>

#include "core/capability.h"
#include "core/device.h"
#include "core/errors.h"
#include "cuda/capture_mode.h"
#include "cuda/nvml.h"
#include "torch/internals.h"

namespace torch_cudnn_ext {

namespace {

class EventTimer : public Timer {
 public:
  void start(int head_starts) override {
    occupy_gpu(head_starts * kHeadStartCycles);
    begin_.record();
    host_begin_ = Clock::now();
  }
  void stop() override {
    host_end_ = Clock::now();
    end_.record();
    host_was_ahead_ = !begin_.query();
  }
  bool host_was_ahead() const override { return host_was_ahead_; }
  float milliseconds() override {
    end_.synchronize();
    return begin_.elapsed_time(end_);
  }
  std::optional<double> host_milliseconds() const override {
    return std::chrono::duration<double, std::milli>(host_end_ - host_begin_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kHeadStartCycles = 200'000;  // some 0.1 ms
  Clock::time_point host_begin_, host_end_;
  bool host_was_ahead_ = true;
  at::cuda::CUDAEvent begin_{cudaEventDefault}, end_{cudaEventDefault};
};

class CudaRuntime : public DeviceRuntime {
 public:
  std::string fingerprint(const Device& device) const override {
    const cudaDeviceProp* p = at::cuda::getDeviceProperties(static_cast<int8_t>(device.index));
    return c10::str(p->name, "/sm", p->major, p->minor, "/", p->multiProcessorCount, "sm/cudnn",
                    cudnnGetVersion());
  }

  int64_t total_memory_bytes(const Device& device) const override {
    return static_cast<int64_t>(
        at::cuda::getDeviceProperties(static_cast<int8_t>(device.index))->totalGlobalMem);
  }

  // Sets the offset as PyTorch's own kernels do: set_state() would make PyTorch draw the random
  // states of its own recurrent networks anew.
  std::function<void()> restorer_of(at::Generator generator) const override {
    auto* own = at::check_generator<at::CUDAGeneratorImpl>(generator);
    return [generator, own, offset = own->philox_offset_per_thread()] {
      own->set_philox_offset_per_thread(offset);
    };
  }

  bool is_capturing(const Device& device) const override {
    c10::cuda::CUDAGuard guard(device.torch_device());
    return at::cuda::currentStreamCaptureStatus() != c10::cuda::CaptureStatus::None;
  }

  void call_freely(c10::function_ref<void()> calls) const override {
    CaptureMode relaxed(cudaStreamCaptureModeRelaxed);
    calls();
  }

  void synchronize(const Device& device, const std::string& what) const override {
    using std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kSpin(1), kPause(1), kLong(30'000);
    auto stream = at::cuda::getCurrentCUDAStream(static_cast<int8_t>(device.index));
    auto start = steady_clock::now();
    bool warned = false;
    while (!stream.query()) {
      auto waited = steady_clock::now() - start;
      if (waited < kSpin) continue;
      std::this_thread::sleep_for(kPause);
      check_interrupt();
      if (waited < kLong || warned) continue;
      warned = true;
      warn(c10::str(what,
                    " has run for 30 s on the GPU and may never end; no kernel can be stopped, "
                    "but this process can (Ctrl-C)"));
    }
  }

  std::unique_ptr<Timer> make_timer(const Device&) const override {
    return std::make_unique<EventTimer>();
  }

  // Overwrites four times the size of the largest L2 cache of today.
  void flush_cache(const Device& device) const override {
    constexpr int64_t kBytes = 256 << 20;
    at::empty({kBytes}, at::TensorOptions(at::kByte).device(device.torch_device())).zero_();
  }

  void release_cached_memory(const Device&) const override {
    c10::cuda::CUDACachingAllocator::emptyCache();
  }

  std::optional<Clocks> clocks(const Device& device) const override {
    return nvml_clocks(bus_id(device));
  }
  std::optional<double> power_limit_w(const Device& device) const override {
    return nvml_power_limit_w(bus_id(device));
  }
  std::optional<double> energy_mj(const Device& device) const override {
    return nvml_energy_mj(bus_id(device));
  }

 private:
  static std::string bus_id(const Device& device) {
    const cudaDeviceProp* p = at::cuda::getDeviceProperties(static_cast<int8_t>(device.index));
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%08x:%02x:%02x.0", p->pciDomainID, p->pciBusID,
                  p->pciDeviceID);
    return text.data();
  }
};

const bool registered = [] {
  register_runtime(Device::Kind::cuda, std::make_unique<CudaRuntime>());
  return register_capability([](int index) {
    const cudaDeviceProp* p = at::cuda::getDeviceProperties(static_cast<int8_t>(index));
    return p->major * 10 + p->minor;
  });
}();

}  // namespace

}  // namespace torch_cudnn_ext
