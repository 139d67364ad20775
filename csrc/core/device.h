// The device that a problem is for: the CPU, a CUDA device, or a target. A target is the properties
// of a GPU that is absent. DeviceRuntime does what differs between them at run time. Knows nothing
// of CUDA.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_cudnn_ext {

struct Device {
  enum class Kind : int8_t { cpu, cuda, target };
  Kind kind = Kind::cpu;
  int index = 0;  // of the CUDA device, or in the list of targets

  int64_t code() const { return static_cast<int64_t>(kind) << 32 | index; }
  bool is_target() const { return kind == Kind::target; }
  bool is_cuda() const { return kind == Kind::cuda; }
  bool has_gpu_backends() const { return kind != Kind::cpu; }
  c10::Device torch_device() const;  // throws for a target
  std::string text() const;
};

Device device_of(const c10::Device& device);
Device parse_device(const std::string& text);  // throws ValueError
void add_target(const std::string& name, const std::string& device_properties_json);
std::string target_properties(const Device& target);  // JSON

// Time between two points of the device's work, and of the host's if the host runs ahead.
class Timer {
 public:
  virtual ~Timer() = default;
  // First keeps the device busy for `head_starts` times as long as a host usually needs to get
  // ahead.
  virtual void start(int head_starts) = 0;
  virtual void stop() = 0;
  // False if the device reached the work before the host had enqueued all of it: the device may
  // have waited, and then its time includes the host's. On a CPU: false if other work of the
  // machine may have taken a part of the time.
  virtual bool host_was_ahead() const { return true; }
  // Whether other processes left too few cores since this was made: then they slow every run, and
  // those that use all cores most. May wait until that is known.
  virtual bool is_machine_busy() const { return false; }
  virtual float milliseconds() = 0;  // waits for the device
  // The host's time to enqueue the work; none if the host does the work itself.
  virtual std::optional<double> host_milliseconds() const { return std::nullopt; }
};

// Whether times count as they are, although other work disturbs them, and nothing is unstable. Off
// at first; for tests, which are not to depend on what else the machine does.
void ignore_other_work(bool ignore);
bool ignores_other_work();

// The clocks of a GPU at one moment.
struct Clocks {
  int64_t sm_mhz = 0;
  std::vector<std::string> slowdowns;  // why the driver holds them down
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual std::string fingerprint(const Device& device) const = 0;
  virtual int64_t total_memory_bytes(const Device& device) const = 0;
  virtual bool is_capturing(const Device& device) const = 0;
  // Runs `calls`, which may make any call to the device, even while this thread's stream is
  // captured.
  virtual void call_freely(c10::function_ref<void()> calls) const { calls(); }
  // Waits until the device is done or the user interrupts. Warns if `what` may never end.
  virtual void synchronize(const Device& device, const std::string& what) const = 0;
  virtual std::unique_ptr<Timer> make_timer(const Device& device) const = 0;
  // Evicts the last-level cache.
  virtual void flush_cache(const Device& device) const = 0;
  // A function that resets a generator to its present state.
  virtual std::function<void()> restorer_of(at::Generator generator) const;
  // Returns the freed memory that the allocator keeps to the device, for other processes.
  virtual void release_cached_memory(const Device&) const {}
  // What the driver tells; nullopt if it does not.
  virtual std::optional<Clocks> clocks(const Device&) const { return std::nullopt; }
  virtual std::optional<double> power_limit_w(const Device&) const { return std::nullopt; }
  // What the device has taken since some point in the past. The counter moves in steps.
  virtual std::optional<double> energy_mj(const Device&) const { return std::nullopt; }
};

const DeviceRuntime& runtime_of(const Device& device);
std::string fingerprint_of(const Device& device);
// Returns the runtime that was registered before.
std::unique_ptr<DeviceRuntime> register_runtime(Device::Kind kind,
                                                std::unique_ptr<DeviceRuntime> runtime);

}  // namespace torch_cudnn_ext
