#include "replay/kernel_list.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/capability.h"
#include "core/device.h"
#include "core/library_versions.h"
#include "cudnn/verified.h"

namespace torch_cudnn_ext {

namespace {

// The runtime's functions know only kernels that the runtime loaded. cuDNN loads many through the
// driver.
struct Driver {
  PFN_cuGraphKernelNodeGetParams_v12000 kernel_params;
  PFN_cuGraphKernelNodeGetAttribute_v11000 node_attribute;
  PFN_cuKernelGetFunction_v12000 function_of_kernel;
  PFN_cuFuncGetParamInfo_v12040 parameter_info;
  PFN_cuFuncGetAttribute_v2020 function_attribute;
  PFN_cuFuncSetAttribute_v9000 set_function_attribute;
  PFN_cuKernelGetAttribute_v12000 kernel_attribute;
  PFN_cuKernelSetAttribute_v12000 set_kernel_attribute;
  PFN_cuLaunchKernelEx_v11060 launch;
  PFN_cuMemsetD8Async_v3020 fill_bytes;
  PFN_cuMemsetD32Async_v3020 fill_words;
  bool complete = true;

  Driver() {
    find("cuGraphKernelNodeGetParams", 12000, kernel_params);
    find("cuGraphKernelNodeGetAttribute", 11000, node_attribute);
    find("cuKernelGetFunction", 12000, function_of_kernel);
    find("cuFuncGetParamInfo", 12040, parameter_info);
    find("cuFuncGetAttribute", 2020, function_attribute);
    find("cuFuncSetAttribute", 9000, set_function_attribute);
    find("cuKernelGetAttribute", 12000, kernel_attribute);
    find("cuKernelSetAttribute", 12000, set_kernel_attribute);
    find("cuLaunchKernelEx", 11060, launch);
    find("cuMemsetD8Async", 3020, fill_bytes);
    find("cuMemsetD32Async", 3020, fill_words);
  }

  template <class F>
  void find(const char* name, unsigned version, F& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaError_t status =
        cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
    complete = complete && status == cudaSuccess && result == cudaDriverEntryPointSuccess;
    function = reinterpret_cast<F>(found);
  }
};

const Driver& driver() {
  static const Driver functions;
  return functions;
}

// Attributes that a launch takes over from a node, and attributes that a node must not have. The
// priority is the stream's.
constexpr CUlaunchAttributeID kKept[] = {CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                                         CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
constexpr CUlaunchAttributeID kUnsupported[] = {CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
                                                CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN};
// Attributes that change only a kernel's speed. A driver may not know all of them.
constexpr CUlaunchAttributeID kHints[] = {CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
                                          CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION};

constexpr size_t kWord = sizeof(uint64_t), kMostParameters = 64;

// False if CUDA does not tell. An attribute that is not set is all zeros.
bool read_attribute(cudaGraphNode_t node, CUlaunchAttributeID id, CUlaunchAttribute& attribute) {
  attribute = {};
  attribute.id = id;
  return driver().node_attribute(node, id, &attribute.value) == CUDA_SUCCESS;
}

// The whole unions, since all of their bytes are defined: they are zero before CUDA fills them in.
bool same_bytes(const CUlaunchAttributeValue& a, const CUlaunchAttributeValue& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;  // NOLINT(bugprone-suspicious-memory-comparison)
}

bool is_set(const CUlaunchAttribute& attribute) {
  static const CUlaunchAttributeValue unset{};
  return !same_bytes(attribute.value, unset);
}

}  // namespace

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph, size_t most) {
  size_t count = 0;
  if (cudaGraphGetNodes(graph, nullptr, &count) != cudaSuccess || count > most) return {};
  std::vector<cudaGraphNode_t> nodes(count);
  if (cudaGraphGetNodes(graph, nodes.data(), &count) != cudaSuccess) return {};
  return nodes;
}

bool KernelList::read_kernel(cudaGraphNode_t node, Step& step) {
  CUDA_KERNEL_NODE_PARAMS params{};
  if (driver().kernel_params(node, &params) != CUDA_SUCCESS) return false;
  step.function = params.func;
  step.kernel = params.kern;
  if (step.function == nullptr &&
      driver().function_of_kernel(&step.function, step.kernel) != CUDA_SUCCESS) {
    return false;
  }
  step.shape = {params.gridDimX,  params.gridDimY,  params.gridDimZ,
                params.blockDimX, params.blockDimY, params.blockDimZ};
  step.shared_bytes = params.sharedMemBytes;
  CUlaunchAttribute attribute;
  for (CUlaunchAttributeID id : kUnsupported) {
    if (!read_attribute(node, id, attribute) || is_set(attribute)) return false;
  }
  for (CUlaunchAttributeID id : kKept) {
    if (!read_attribute(node, id, attribute)) return false;
    if (is_set(attribute)) step.attributes.push_back(attribute);
  }
  for (CUlaunchAttributeID id : kHints) {
    if (read_attribute(node, id, attribute) && is_set(attribute)) {
      step.attributes.push_back(attribute);
    }
  }
  constexpr unsigned kWholeCache = 100;  // per cent; a larger number leaves it to the driver
  if (read_attribute(node, CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, attribute) &&
      is_set(attribute) && attribute.value.sharedMemCarveout <= kWholeCache) {
    step.attributes.push_back(attribute);
  }
  if (params.kernelParams == nullptr) return read_buffer(params.extra, step);
  for (size_t i = 0;; ++i) {
    size_t offset = 0, bytes = 0;
    CUresult status = driver().parameter_info(step.function, i, &offset, &bytes);
    if (status == CUDA_ERROR_INVALID_VALUE) return i > 0;  // after the last one
    if (status != CUDA_SUCCESS || i == kMostParameters) return false;
    size_t begin = step.words.size();
    step.parameters.push_back(begin);
    step.words.resize(begin + (bytes + kWord - 1) / kWord);
    std::memcpy(&step.words[begin], params.kernelParams[i], bytes);
  }
}

bool KernelList::read_buffer(void* const* extra, Step& step) {
  const void* buffer = nullptr;
  const size_t* bytes = nullptr;
  for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[1];
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = static_cast<const size_t*>(extra[1]);
    } else {
      return false;
    }
  }
  if (buffer == nullptr || bytes == nullptr) return false;
  step.buffer_bytes = *bytes;
  step.words.resize((*bytes + kWord - 1) / kWord);
  std::memcpy(step.words.data(), buffer, *bytes);
  return *bytes > 0;
}

bool KernelList::read_memset(cudaGraphNode_t node, Step& step) {
  cudaMemsetParams params{};
  if (cudaGraphMemsetNodeGetParams(node, &params) != cudaSuccess || params.height != 1) {
    return false;
  }
  step.words = {reinterpret_cast<uint64_t>(params.dst)};
  step.value = params.value;
  step.element_bytes = params.elementSize;
  step.elements = params.width;
  return params.elementSize == 1 || params.elementSize == 4;
}

std::optional<std::vector<KernelList::Step>> KernelList::read(
    const std::vector<cudaGraphNode_t>& nodes) {
  if (nodes.empty()) return std::nullopt;
  std::vector<Step> steps(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    cudaGraphNodeType type;
    if (cudaGraphNodeGetType(nodes[i], &type) != cudaSuccess) return std::nullopt;
    bool known = type == cudaGraphNodeTypeKernel   ? read_kernel(nodes[i], steps[i])
                 : type == cudaGraphNodeTypeMemset ? read_memset(nodes[i], steps[i])
                                                   : false;
    if (!known) return std::nullopt;
  }
  return steps;
}

std::optional<std::vector<KernelList::Step>> KernelList::read_chain(cudaGraph_t graph,
                                                                    size_t most) {
  std::vector<cudaGraphNode_t> nodes = nodes_of(graph, most);
  auto steps = read(nodes);
  if (!steps) return std::nullopt;
  size_t links = nodes.size() - 1, edge_count = 0;
  if (cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edge_count) != cudaSuccess ||
      edge_count != links) {
    return std::nullopt;
  }
  std::vector<cudaGraphNode_t> from(links), to(links);
  std::vector<cudaGraphEdgeData> edges(links);
  if (links > 0 &&
      cudaGraphGetEdges(graph, from.data(), to.data(), edges.data(), &edge_count) != cudaSuccess) {
    return std::nullopt;
  }
  // The nodes are a chain only if their order is that of the chain.
  for (size_t i = 1; i < nodes.size(); ++i) {
    auto edge = static_cast<size_t>(std::find(to.begin(), to.end(), nodes[i]) - to.begin());
    if (edge == links || from[edge] != nodes[i - 1]) return std::nullopt;
    if (edges[edge].type != cudaGraphDependencyTypeProgrammatic) continue;
    if (edges[edge].from_port != cudaGraphKernelNodePortProgrammatic) return std::nullopt;
    CUlaunchAttribute early{};  // the kernel begins before the previous one has ended
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
    (*steps)[i].attributes.push_back(early);
  }
  return steps;
}

bool KernelList::alike(const Step& a, const Step& b) {
  auto same = [](const CUlaunchAttribute& x, const CUlaunchAttribute& y) {
    return x.id == y.id && same_bytes(x.value, y.value);
  };
  return a.function == b.function && a.kernel == b.kernel && a.shape == b.shape &&
         a.shared_bytes == b.shared_bytes &&
         std::equal(a.attributes.begin(), a.attributes.end(), b.attributes.begin(),
                    b.attributes.end(), same) &&
         a.parameters == b.parameters && a.buffer_bytes == b.buffer_bytes &&
         a.words.size() == b.words.size() && a.value == b.value &&
         a.element_bytes == b.element_bytes && a.elements == b.elements;
}

std::optional<KernelList::Patch> KernelList::patch_of(
    size_t word, const std::array<uint64_t, 3>& found,
    const std::array<RecordedAt, 3>& synthetic_addresses) {
  constexpr int64_t kFarthest = int64_t{1} << 38;  // bytes from a tensor's address
  std::optional<Patch> patch;
  for (size_t a = 0; a < synthetic_addresses[0].addresses.size(); ++a) {
    auto offset = [&](size_t r) { return found[r] - synthetic_addresses[r].addresses[a]; };
    auto distance = static_cast<int64_t>(offset(0));
    bool near = -kFarthest < distance && distance < kFarthest;
    if (!near || offset(0) != offset(1) || offset(0) != offset(2)) continue;
    bool same = patch && synthetic_addresses[0].addresses[patch->address] ==
                             synthetic_addresses[0].addresses[a];
    if (patch && !same) return std::nullopt;
    if (!patch) patch = Patch{word, a, offset(0)};
  }
  return patch;
}

std::optional<KernelList> KernelList::learn(const std::array<RecordedAt, 3>& synthetic_addresses,
                                            const RecordedAt& real, size_t most) {
  std::array<std::vector<Step>, 4> recorded;
  for (size_t r = 0; r < recorded.size(); ++r) {
    auto steps = read_chain(r < 3 ? synthetic_addresses[r].graph : real.graph, most);
    if (!steps) return std::nullopt;
    recorded[r] = std::move(*steps);
    if (recorded[r].size() != recorded[0].size()) return std::nullopt;
  }
  KernelList list;
  list.steps_ = recorded[0];
  std::vector<uint64_t> used;
  for (size_t s = 0; s < list.steps_.size(); ++s) {
    Step& step = list.steps_[s];
    bool all_alike = std::all_of(recorded.begin(), recorded.end(),
                                 [&](const auto& steps) { return alike(step, steps[s]); });
    if (!all_alike) return std::nullopt;
    for (size_t w = 0; w < step.words.size(); ++w) {
      std::array<uint64_t, 3> found;
      for (size_t r = 0; r < 3; ++r) found[r] = recorded[r][s].words[w];
      if (found[0] == found[1] && found[0] == found[2]) continue;
      auto patch = patch_of(w, found, synthetic_addresses);
      if (!patch) return std::nullopt;
      step.patches.push_back(*patch);
      used.push_back(synthetic_addresses[0].addresses[patch->address]);
    }
  }
  // An address that no kernel gets is elsewhere, such as in a table that cuDNN made beforehand.
  auto addresses = synthetic_addresses[0].addresses;
  bool all_used = std::all_of(addresses.begin(), addresses.end(), [&](uint64_t address) {
    return address == 0 || std::find(used.begin(), used.end(), address) != used.end();
  });
  if (!all_used) return std::nullopt;
  list.patch_addresses(real.addresses);
  for (size_t s = 0; s < list.steps_.size(); ++s) {
    if (list.steps_[s].words != recorded[3][s].words) return std::nullopt;
  }
  return list;
}

bool KernelList::can_learn() {
  int capability = capability_of({Device::Kind::cuda, c10::cuda::current_device()});
  return replays_kernels(library_version(Library::cudnn), capability) && driver().complete;
}

bool KernelList::covers_all(const RecordedAt& call, size_t most) {
  if (!driver().complete) return false;
  auto steps = read(nodes_of(call.graph, most));
  auto addresses = call.addresses;
  auto is_given = [&](uint64_t address) {
    auto is_of = [&](uint64_t word) {
      bool another = std::any_of(addresses.begin(), addresses.end(),
                                 [&](uint64_t other) { return address < other && other <= word; });
      return word - address < kAlignment && !another;
    };
    return address == 0 || std::any_of(steps->begin(), steps->end(), [&](const Step& step) {
             return std::any_of(step.words.begin(), step.words.end(), is_of);
           });
  };
  return steps && std::all_of(addresses.begin(), addresses.end(), is_given);
}

void KernelList::patch_addresses(c10::ArrayRef<uint64_t> addresses) {
  for (Step& step : steps_) {
    for (const Patch& patch : step.patches) {
      step.words[patch.word] = addresses[patch.address] + patch.offset;
    }
  }
}

CUresult KernelList::launch_step(Step& step, cudaStream_t stream) {
  if (step.function == nullptr) {
    auto byte = static_cast<unsigned char>(step.value);
    return step.element_bytes == 1
               ? driver().fill_bytes(step.words[0], byte, step.elements, stream)
               : driver().fill_words(step.words[0], step.value, step.elements, stream);
  }
  std::array<void*, kMostParameters> parameters;
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    parameters[i] = &step.words[step.parameters[i]];
  }
  CUlaunchConfig config{};
  config.gridDimX = step.shape[0];
  config.gridDimY = step.shape[1];
  config.gridDimZ = step.shape[2];
  config.blockDimX = step.shape[3];
  config.blockDimY = step.shape[4];
  config.blockDimZ = step.shape[5];
  config.sharedMemBytes = step.shared_bytes;
  config.hStream = stream;
  config.attrs = step.attributes.data();
  config.numAttrs = static_cast<unsigned>(step.attributes.size());
  if (step.buffer_bytes == 0) {
    return driver().launch(&config, step.function, parameters.data(), nullptr);
  }
  std::array<void*, 5> buffer{CU_LAUNCH_PARAM_BUFFER_POINTER, step.words.data(),
                              CU_LAUNCH_PARAM_BUFFER_SIZE, &step.buffer_bytes, CU_LAUNCH_PARAM_END};
  return driver().launch(&config, step.function, nullptr, buffer.data());
}

CUresult KernelList::launch_with_memory(Step& step, cudaStream_t stream) {
  // cuDNN sets the limit at each of its launches, perhaps below what this one needs, and perhaps on
  // another thread between our calls. The error depends on the kernel: a cooperative one counts as
  // too large if none of its blocks has room.
  constexpr int kMostAttempts = 8;
  CUresult status = launch_step(step, stream);
  for (int i = 1; status != CUDA_SUCCESS && i < kMostAttempts && give_memory(step); ++i) {
    status = launch_step(step, stream);
  }
  return status;
}

int KernelList::most_memory(const Step& step) {
  int of_device = 0, fixed = 0;
  bool known = cudaDeviceGetAttribute(&of_device, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      c10::cuda::current_device()) == cudaSuccess &&
               driver().function_attribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                                           step.function) == CUDA_SUCCESS;
  return known ? of_device - fixed : 0;
}

bool KernelList::give_memory(const Step& step) {
  if (step.function == nullptr) return false;
  constexpr auto kDynamic = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  const Driver& d = driver();
  auto bytes = static_cast<int>(step.shared_bytes);
  // A limit of a kernel's function overrides the kernel's own from then on, so that cuDNN's own
  // launches with more memory would fail.
  bool of_kernel = step.kernel != nullptr;
  CUdevice device = c10::cuda::current_device();
  int has = 0;
  CUresult status = of_kernel ? d.kernel_attribute(&has, kDynamic, step.kernel, device)
                              : d.function_attribute(&has, kDynamic, step.function);
  if (status != CUDA_SUCCESS || has >= bytes) return status == CUDA_SUCCESS;
  // The most there is: less could undo what another thread has just set for its own launch.
  int most = most_memory(step);
  if (most < bytes) return false;
  status = of_kernel ? d.set_kernel_attribute(kDynamic, most, step.kernel, device)
                     : d.set_function_attribute(step.function, kDynamic, most);
  return status == CUDA_SUCCESS;
}

bool KernelList::launch(c10::ArrayRef<uint64_t> addresses, cudaStream_t stream) {
  patch_addresses(addresses);
  // After the first launch cuDNN can no longer be called instead.
  bool all_have_memory = std::all_of(steps_.begin() + 1, steps_.end(), [](const Step& step) {
    return step.shared_bytes == 0 || give_memory(step);
  });
  if (!all_have_memory) return false;
  for (size_t s = 0; s < steps_.size(); ++s) {
    CUresult status = launch_with_memory(steps_[s], stream);
    if (status == CUDA_SUCCESS) continue;
    if (s == 0) return false;
    TORCH_CHECK(false, "relaunching kernel ", s + 1, " of ", steps_.size(),
                " of a cuDNN call: ", cudaGetErrorString(static_cast<cudaError_t>(status)));
  }
  return true;
}

}  // namespace torch_cudnn_ext
