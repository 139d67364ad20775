// What NVIDIA's driver tells of a GPU, by its management library (NVML). The library comes with the
// driver and is opened when it is first asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/device.h"

namespace torch_cudnn_ext {

// All by the PCI bus id of a GPU, such as "00000000:1a:00.0". nullopt without the library, or if it
// does not know.
std::optional<Clocks> nvml_clocks(const std::string& bus_id);
std::optional<double> nvml_power_limit_w(const std::string& bus_id);
std::optional<double> nvml_energy_mj(const std::string& bus_id);

}  // namespace torch_cudnn_ext
