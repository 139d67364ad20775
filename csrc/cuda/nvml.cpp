#include "cuda/nvml.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <utility>

namespace torch_cudnn_ext {

namespace {

// The library's C interface, which is the same in all versions of the driver.
using NvmlDevice = struct nvmlDevice_st*;
using Bits = unsigned long long;  // NOLINT(google-runtime-int): of the interface
constexpr int kSuccess = 0;
constexpr int kSmClock = 1;

struct Slowdown {
  Bits bit;
  const char* text;
};
constexpr Slowdown kSlowdowns[] = {{0x4, "power cap"},
                                   {0x8, "hardware slowdown"},
                                   {0x20, "temperature"},
                                   {0x40, "temperature, by the hardware"},
                                   {0x80, "power brake"}};

class Nvml {
 public:
  static Nvml& get() {
    static auto* opened = new Nvml();
    return *opened;
  }

  // The result of a query; nullopt if it fails. `out` is of the type that the query writes.
  template <typename Out, typename Query, typename... Given>
  std::optional<Out> ask(const std::string& bus_id, Query query, Given... given) {
    NvmlDevice device = find(bus_id);
    Out out{};
    if (device == nullptr || query == nullptr) return std::nullopt;
    return query(device, given..., &out) == kSuccess ? std::optional(out) : std::nullopt;
  }

  int (*clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*slowdowns)(NvmlDevice, Bits*) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;
  int (*energy)(NvmlDevice, Bits*) = nullptr;

 private:
  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    auto load = [&](auto& function, const char* name) {
      if (function == nullptr) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      }
    };
    int (*init)() = nullptr;
    load(init, "nvmlInit_v2");
    if (init == nullptr || init() != kSuccess) return;
    load(by_bus_id_, "nvmlDeviceGetHandleByPciBusId_v2");
    load(clock, "nvmlDeviceGetClockInfo");
    load(slowdowns, "nvmlDeviceGetCurrentClocksEventReasons");
    load(slowdowns, "nvmlDeviceGetCurrentClocksThrottleReasons");  // before driver 535
    load(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    load(energy, "nvmlDeviceGetTotalEnergyConsumption");
  }

  NvmlDevice find(const std::string& bus_id) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto [place, is_new] = devices_.emplace(bus_id, nullptr);
    if (is_new && by_bus_id_ != nullptr && by_bus_id_(bus_id.c_str(), &place->second) != kSuccess) {
      place->second = nullptr;
    }
    return place->second;
  }

  int (*by_bus_id_)(const char*, NvmlDevice*) = nullptr;
  std::mutex mutex_;  // guards what follows
  std::map<std::string, NvmlDevice> devices_;
};

}  // namespace

std::optional<Clocks> nvml_clocks(const std::string& bus_id) {
  Nvml& nvml = Nvml::get();
  auto mhz = nvml.ask<unsigned>(bus_id, nvml.clock, kSmClock);
  if (!mhz) return std::nullopt;
  Clocks found{*mhz, {}};
  auto reasons = nvml.ask<Bits>(bus_id, nvml.slowdowns);
  for (const Slowdown& slowdown : kSlowdowns) {
    if ((reasons.value_or(0) & slowdown.bit) != 0) found.slowdowns.emplace_back(slowdown.text);
  }
  return found;
}

std::optional<double> nvml_power_limit_w(const std::string& bus_id) {
  Nvml& nvml = Nvml::get();
  auto milliwatts = nvml.ask<unsigned>(bus_id, nvml.power_limit);
  return milliwatts ? std::optional(*milliwatts * 1e-3) : std::nullopt;
}

std::optional<double> nvml_energy_mj(const std::string& bus_id) {
  Nvml& nvml = Nvml::get();
  auto found = nvml.ask<Bits>(bus_id, nvml.energy);
  return found ? std::optional(static_cast<double>(*found)) : std::nullopt;
}

}  // namespace torch_cudnn_ext
