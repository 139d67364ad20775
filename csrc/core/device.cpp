#include "core/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "core/capability.h"
#include "torch/internals.h"

namespace torch_cudnn_ext {

namespace {

struct Target {
  std::string name;
  std::string properties;
};

std::mutex targets_mutex;

std::vector<std::unique_ptr<Target>>& targets() {
  static auto* list = new std::vector<std::unique_ptr<Target>>();
  return *list;
}

std::atomic<bool> is_other_work_ignored{false};

// How much other work holds this process up.
struct Interference {
  int64_t switches = 0;  // how often the system took a core from a thread of this process
  // How long work of any process of this container waited for a core; 0 if it is not counted.
  int64_t waited_us = 0;

  static Interference until_now() {
    rusage usage{};
    Interference found;
    if (getrusage(RUSAGE_SELF, &usage) == 0) found.switches = usage.ru_nivcsw;
    std::ifstream pressure("/sys/fs/cgroup/cpu.pressure");
    if (!pressure) pressure.open("/proc/pressure/cpu");  // of the whole machine
    std::string word;  // some avg10=0.00 avg60=0.00 avg300=0.00 total=1
    for (int i = 0; i < 5 && pressure >> word; ++i) {
      if (word.rfind("total=", 0) == 0)
        found.waited_us = std::strtoll(word.c_str() + 6, nullptr, 10);
    }
    return found;
  }
};

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// How much of the cores that this process may use was used until a moment. Counts have a resolution
// of 10 ms, so that a share is of at least kShortest.
struct CoreUse {
  static constexpr std::chrono::milliseconds kShortest{200};
  Clock::time_point when;
  double others_s = 0;  // by other processes, all cores together
  int cores = 0;        // 0: not known

  static CoreUse until_now() {
    CoreUse found{Clock::now()};
    cpu_set_t usable;
    std::ifstream counts("/proc/stat");
    if (sched_getaffinity(0, sizeof(usable), &usable) != 0 || !counts) return found;
    int64_t ticks = 0;
    std::string line;  // cpu0 user nice system idle iowait irq softirq steal guest guest_nice
    while (std::getline(counts, line) && line.rfind("cpu", 0) == 0) {
      std::istringstream words(line.substr(3));
      int core = -1;
      if (line[3] == ' ' || !(words >> core) || core >= CPU_SETSIZE) continue;
      if (!CPU_ISSET(core, &usable)) continue;
      int64_t user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
      words >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
      ticks += user + nice + system + irq + softirq + steal;
      ++found.cores;
    }
    timespec own{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
    double own_s = static_cast<double>(own.tv_sec) + static_cast<double>(own.tv_nsec) * 1e-9;
    found.others_s = static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK)) - own_s;
    return found;
  }
};

class CpuTimer : public Timer {
 public:
  void start(int) override {
    before_ = Interference::until_now();
    begin_ = Clock::now();
  }
  void stop() override {
    end_ = Clock::now();
    Interference now = Interference::until_now();
    met_ = {now.switches - before_.switches, now.waited_us - before_.waited_us};
  }
  float milliseconds() override { return static_cast<float>(elapsed_ms()); }
  // False if other work may have taken a part of the time. A core that is taken away comes back
  // after some milliseconds, and a thread that waits for it makes all others wait.
  bool host_was_ahead() const override {
    constexpr double kSwitchMs = 20, kShare = 0.05, kWaitingShare = 0.1;
    bool loses_cores = static_cast<double>(met_.switches) * kSwitchMs > kShare * elapsed_ms();
    bool is_crowded = static_cast<double>(met_.waited_us) * 1e-3 > kWaitingShare * elapsed_ms();
    return ignores_other_work() || (!loses_cores && !is_crowded);
  }
  bool is_machine_busy() const override {
    if (ignores_other_work() || use_before_.cores == 0) return false;
    std::this_thread::sleep_until(use_before_.when + CoreUse::kShortest);
    CoreUse now = CoreUse::until_now();
    double others = now.others_s - use_before_.others_s;
    double free_cores = now.cores - others / seconds_between(use_before_.when, now.when);
    constexpr double kShareOfThreads = 0.75;
    return free_cores < kShareOfThreads * std::min(at::get_num_threads(), now.cores);
  }

 private:
  double elapsed_ms() const { return seconds_between(begin_, end_) * 1e3; }

  const CoreUse use_before_ = CoreUse::until_now();
  Clock::time_point begin_, end_;
  Interference before_, met_;
};

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    size_t colon = line.find(':');
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

class CpuRuntime : public DeviceRuntime {
 public:
  std::string fingerprint(const Device&) const override {
    static const std::string model = cpu_model();
    int threads = at::get_num_threads();
    return c10::str("cpu/", model, "/", threads, threads == 1 ? " thread" : " threads");
  }
  int64_t total_memory_bytes(const Device&) const override {
    std::ifstream info("/proc/meminfo");
    std::string key;
    int64_t kibibytes = 0;
    info >> key >> kibibytes;
    return kibibytes * 1024;
  }
  bool is_capturing(const Device&) const override { return false; }
  void synchronize(const Device&, const std::string&) const override {}
  std::unique_ptr<Timer> make_timer(const Device&) const override {
    return std::make_unique<CpuTimer>();
  }
  // The CPU's cache also holds the code, so it stays.
  void flush_cache(const Device&) const override {}
};

// The properties of an absent GPU are enough to list algorithms, and to do nothing else.
class TargetRuntime : public DeviceRuntime {
 public:
  std::string fingerprint(const Device& device) const override { return device.text(); }
  int64_t total_memory_bytes(const Device& device) const override {
    auto bytes = number_in_properties(device, "totalGlobalMem");
    TORCH_CHECK_VALUE(bytes, "device ", device.text(), " has no totalGlobalMem in its properties");
    return *bytes;
  }
  bool is_capturing(const Device&) const override { return false; }
  void synchronize(const Device& device, const std::string&) const override { fail(device); }
  std::unique_ptr<Timer> make_timer(const Device& device) const override { fail(device); }
  void flush_cache(const Device& device) const override { fail(device); }

 private:
  [[noreturn]] static void fail(const Device& device) {
    device.torch_device();
    TORCH_INTERNAL_ASSERT(false);
  }
};

auto& runtimes() {
  static auto* list = new std::array<std::unique_ptr<DeviceRuntime>, 3>{
      std::make_unique<CpuRuntime>(), nullptr, std::make_unique<TargetRuntime>()};
  return *list;
}

}  // namespace

c10::Device Device::torch_device() const {
  TORCH_CHECK_VALUE(kind != Kind::target, "device ", text(),
                    " is a target: it can be listed for, but nothing runs on it");
  return kind == Kind::cpu ? c10::Device(c10::kCPU)
                           : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

std::string Device::text() const {
  if (kind == Kind::cpu) return "cpu";
  if (kind == Kind::cuda) return c10::str("cuda:", index);
  std::lock_guard<std::mutex> lock(targets_mutex);
  return "target:" + targets()[index]->name;
}

Device device_of(const c10::Device& device) {
  if (device.is_cpu()) return {};
  TORCH_CHECK_VALUE(device.is_cuda(), "device ", device.str(),
                    " is not supported, wanted cpu or cuda");
  return {Device::Kind::cuda, device.index()};
}

Device parse_device(const std::string& text) {
  if (text.rfind("target:", 0) == 0) {
    std::lock_guard<std::mutex> lock(targets_mutex);
    std::string name = text.substr(7), known;
    for (size_t i = 0; i < targets().size(); ++i) {
      if (targets()[i]->name == name) return {Device::Kind::target, static_cast<int>(i)};
      known += (known.empty() ? "" : ", ") + targets()[i]->name;
    }
    TORCH_CHECK_VALUE(false, "device: no target '", name, "', wanted one of ", known);
  }
  bool digits = text.size() > 5 && text.size() < 9 &&
                text.find_first_not_of("0123456789", 5) == std::string::npos;
  TORCH_CHECK_VALUE(text == "cpu" || text == "cuda" || (text.rfind("cuda:", 0) == 0 && digits),
                    "device is '", text, "', wanted cpu, cuda, cuda:INDEX or target:NAME");
  if (text == "cpu") return {};
  if (text != "cuda") return {Device::Kind::cuda, std::stoi(text.substr(5))};
  if (!at::hasCUDA()) return {Device::Kind::cuda, 0};
  return device_of(current_device_of(c10::DeviceType::CUDA));
}

void add_target(const std::string& name, const std::string& device_properties_json) {
  std::lock_guard<std::mutex> lock(targets_mutex);
  for (auto& target : targets()) {
    if (target->name == name) {
      target->properties = device_properties_json;
      return;
    }
  }
  targets().push_back(std::make_unique<Target>(Target{name, device_properties_json}));
}

std::string target_properties(const Device& target) {
  std::lock_guard<std::mutex> lock(targets_mutex);
  return targets().at(target.index)->properties;
}

void ignore_other_work(bool ignore) { is_other_work_ignored = ignore; }
bool ignores_other_work() { return is_other_work_ignored; }

const DeviceRuntime& runtime_of(const Device& device) {
  const auto& runtime = runtimes()[static_cast<int>(device.kind)];
  TORCH_CHECK_VALUE(runtime, "device ", device.text(),
                    " has no run time: it can be listed for only");
  return *runtime;
}

std::string fingerprint_of(const Device& device) { return runtime_of(device).fingerprint(device); }

std::function<void()> DeviceRuntime::restorer_of(at::Generator generator) const {
  return [generator, state = generator.get_state()]() mutable { generator.set_state(state); };
}

std::unique_ptr<DeviceRuntime> register_runtime(Device::Kind kind,
                                                std::unique_ptr<DeviceRuntime> runtime) {
  return std::exchange(runtimes()[static_cast<int>(kind)], std::move(runtime));
}

}  // namespace torch_cudnn_ext
