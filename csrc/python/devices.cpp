#include <cuda_runtime_api.h>

#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/policy/policy_text.h"
#include "cuda/workspace.h"
#include "cudnn/handle.h"
#include "python/bindings.h"
#include "python/conversions.h"
#include "replay/replay.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

py::dict versions() {
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  py::dict d;
  d["torch"] = py::module_::import("torch").attr("__version__").cast<std::string>();
  d["cudnn"] = std::to_string(cudnnGetVersion());
  d["cudnn_header"] = std::to_string(CUDNN_VERSION);
  d["cudart"] = std::to_string(runtime);
  return d;
}

// What the driver tells of a device now; what it does not tell is None.
py::dict device_state(const std::string& text) {
  Device device = parse_device(text);
  const DeviceRuntime& runtime = runtime_of(device);
  std::optional<Clocks> clocks;
  std::optional<double> power_limit_w, energy_mj;
  {
    py::gil_scoped_release release;
    clocks = runtime.clocks(device);
    power_limit_w = runtime.power_limit_w(device);
    energy_mj = runtime.energy_mj(device);
  }
  py::dict d;
  d["sm_clock_mhz"] = clocks ? py::object(py::int_(clocks->sm_mhz)) : py::none();
  d["throttled"] = clocks ? clocks->slowdowns : std::vector<std::string>{};
  d["power_limit_w"] = object_of(power_limit_w);
  d["energy_mj"] = object_of(energy_mj);
  return d;
}

}  // namespace

void bind_devices(py::module_& m) {
  m.def("add_target", add_target, py::arg("name"), py::arg("device_properties_json"));
  m.def(
      "device_fingerprint",
      [](const std::string& device) { return fingerprint_of(parse_device(device)); },
      py::arg("device"));
  m.def("device_state", device_state, py::arg("device"));
  m.def("versions", versions);
  m.def("cudnn_files", cudnn_files);
  m.def("set_workspace_reserve", set_workspace_reserve, NoGil(), py::arg("bytes_by_device"));
  m.def("workspace_reserve_info", [] {
    WorkspaceReserveInfo info = workspace_reserve_info();
    py::dict d;
    d["held_bytes"] = info.held_bytes;
    d["served"] = info.served;
    return d;
  });
  m.def(
      "replay_obstacle",
      [](const std::string& policy, const std::string& device) {
        std::string obstacle =
            replay_obstacle(parse_device(device), parse_policy(policy, "conv").replay_of_calls());
#ifdef Py_GIL_DISABLED
        if (obstacle.empty()) obstacle = "this Python has no global lock, which recording needs";
#endif
        return obstacle;
      },
      py::arg("policy"), py::arg("device"));
  m.def("replay_info", [] {
    ReplayInfo info = replay_info();
    py::dict d;
    d["recorded"] = info.recorded;
    d["replayed"] = info.replayed;
    d["learnt"] = info.learnt;
    d["relaunched"] = info.relaunched;
    d["kernels"] = info.kernels;
    return d;
  });
}

}  // namespace torch_cudnn_ext
