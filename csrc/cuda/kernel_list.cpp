#include "cuda/kernel_list.h"

#include <c10/util/Exception.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace torch_cudnn_ext {

namespace {

// The runtime's functions know kernels of its own only; cuDNN loads many by the driver's.
struct Driver {
  PFN_cuGraphKernelNodeGetParams_v12000 kernel_params;
  PFN_cuGraphKernelNodeGetAttribute_v11000 kernel_attribute;
  PFN_cuFuncGetParamInfo_v12040 function_parameter;
  PFN_cuKernelGetParamInfo_v12040 kernel_parameter;
  PFN_cuLaunchKernelEx_v11060 launch;
  PFN_cuMemsetD8Async_v3020 set8;
  PFN_cuMemsetD32Async_v3020 set32;
  bool complete = true;

  Driver() {
    find("cuGraphKernelNodeGetParams", 12000, kernel_params);
    find("cuGraphKernelNodeGetAttribute", 11000, kernel_attribute);
    find("cuFuncGetParamInfo", 12040, function_parameter);
    find("cuKernelGetParamInfo", 12040, kernel_parameter);
    find("cuLaunchKernelEx", 11060, launch);
    find("cuMemsetD8Async", 3020, set8);
    find("cuMemsetD32Async", 3020, set32);
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

// What a launch takes over from a node. The priority is the stream's.
constexpr CUlaunchAttributeID kKept[] = {CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                                         CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                         CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
                                         CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION,
                                         CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT};

constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kMostParameters = 64;

}  // namespace

bool KernelList::read_kernel(cudaGraphNode_t node, Step& step) {
  CUDA_KERNEL_NODE_PARAMS params{};
  if (driver().kernel_params(node, &params) != CUDA_SUCCESS || params.kernelParams == nullptr) {
    return false;
  }
  step.function = params.func != nullptr ? params.func : reinterpret_cast<CUfunction>(params.kern);
  step.shape = {params.gridDimX,  params.gridDimY,  params.gridDimZ,
                params.blockDimX, params.blockDimY, params.blockDimZ};
  step.shared_bytes = params.sharedMemBytes;
  for (CUlaunchAttributeID id : kKept) {
    CUlaunchAttribute attribute{};
    attribute.id = id;
    static const CUlaunchAttributeValue unset{};
    bool has = driver().kernel_attribute(node, id, &attribute.value) == CUDA_SUCCESS;
    if (has && std::memcmp(&attribute.value, &unset, sizeof unset) != 0) {
      step.attributes.push_back(attribute);
    }
  }
  for (size_t i = 0;; ++i) {
    size_t offset = 0, bytes = 0;
    CUresult status = params.func != nullptr
                          ? driver().function_parameter(params.func, i, &offset, &bytes)
                          : driver().kernel_parameter(params.kern, i, &offset, &bytes);
    if (status == CUDA_ERROR_INVALID_VALUE) return true;  // behind the last one
    if (status != CUDA_SUCCESS) return false;
    size_t begin = step.words.size();
    if (i == kMostParameters) return false;
    step.parameters.push_back(begin);
    step.words.resize(begin + (bytes + kWord - 1) / kWord);
    std::memcpy(&step.words[begin], params.kernelParams[i], bytes);
  }
}

bool KernelList::read_memset(cudaGraphNode_t node, Step& step) {
  cudaMemsetParams params{};
  if (cudaGraphMemsetNodeGetParams(node, &params) != cudaSuccess || params.height != 1)
    return false;
  step.words = {reinterpret_cast<uint64_t>(params.dst)};
  step.value = params.value;
  step.element_bytes = params.elementSize;
  step.elements = params.width;
  return params.elementSize == 1 || params.elementSize == 4;
}

std::optional<std::vector<KernelList::Step>> KernelList::read(cudaGraph_t graph, size_t most) {
  size_t count = 0, edge_count = 0;
  if (cudaGraphGetNodes(graph, nullptr, &count) != cudaSuccess || count == 0 || count > most) {
    return std::nullopt;
  }
  std::vector<cudaGraphNode_t> nodes(count);
  if (cudaGraphGetNodes(graph, nodes.data(), &count) != cudaSuccess ||
      cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edge_count) != cudaSuccess ||
      edge_count != count - 1) {
    return std::nullopt;
  }
  std::vector<cudaGraphNode_t> from(edge_count), to(edge_count);
  std::vector<cudaGraphEdgeData> edges(edge_count);
  if (edge_count > 0 &&
      cudaGraphGetEdges(graph, from.data(), to.data(), edges.data(), &edge_count) != cudaSuccess) {
    return std::nullopt;
  }
  // The order of the nodes is that of the chain, or they are none.
  std::vector<Step> steps(count);
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) {
      auto edge = std::find(to.begin(), to.end(), nodes[i]) - to.begin();
      if (edge == static_cast<std::ptrdiff_t>(edge_count) || from[edge] != nodes[i - 1]) {
        return std::nullopt;
      }
      if (edges[edge].type == cudaGraphDependencyTypeProgrammatic) {
        if (edges[edge].from_port != cudaGraphKernelNodePortProgrammatic) return std::nullopt;
        CUlaunchAttribute early{};  // it begins before the one in front of it has ended
        early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        early.value.programmaticStreamSerializationAllowed = 1;
        steps[i].attributes.push_back(early);
      }
    }
    cudaGraphNodeType type;
    if (cudaGraphNodeGetType(nodes[i], &type) != cudaSuccess) return std::nullopt;
    bool known = type == cudaGraphNodeTypeKernel   ? read_kernel(nodes[i], steps[i])
                 : type == cudaGraphNodeTypeMemset ? read_memset(nodes[i], steps[i])
                                                   : false;
    if (!known) return std::nullopt;
  }
  return steps;
}

bool KernelList::alike(const Step& a, const Step& b) {
  auto same = [](const CUlaunchAttribute& x, const CUlaunchAttribute& y) {
    return x.id == y.id && std::memcmp(&x.value, &y.value, sizeof x.value) == 0;
  };
  return a.function == b.function && a.shape == b.shape && a.shared_bytes == b.shared_bytes &&
         std::equal(a.attributes.begin(), a.attributes.end(), b.attributes.begin(),
                    b.attributes.end(), same) &&
         a.parameters == b.parameters && a.words.size() == b.words.size() && a.value == b.value &&
         a.element_bytes == b.element_bytes && a.elements == b.elements;
}

std::optional<KernelList> KernelList::learn(const std::array<RecordedAt, 3>& recordings,
                                            size_t most) {
  if (!driver().complete) return std::nullopt;
  std::array<std::vector<Step>, 3> read_steps;
  for (size_t r = 0; r < 3; ++r) {
    auto steps = read(recordings[r].graph, most);
    if (!steps) return std::nullopt;
    read_steps[r] = std::move(*steps);
  }
  auto& [first, second, third] = read_steps;
  if (first.size() != second.size() || first.size() != third.size()) return std::nullopt;
  size_t addresses = recordings[0].addresses.size();
  for (size_t s = 0; s < first.size(); ++s) {
    if (!alike(first[s], second[s]) || !alike(first[s], third[s])) return std::nullopt;
    for (size_t w = 0; w < first[s].words.size(); ++w) {
      uint64_t found[] = {first[s].words[w], second[s].words[w], third[s].words[w]};
      if (found[0] == found[1] && found[0] == found[2]) continue;
      size_t a = 0;
      auto offset_in = [&](size_t r) { return found[r] - recordings[r].addresses[a]; };
      while (a < addresses && (offset_in(0) != offset_in(1) || offset_in(0) != offset_in(2))) ++a;
      if (a == addresses) return std::nullopt;
      first[s].patches.push_back({w, a, offset_in(0)});
    }
  }
  KernelList list;
  list.steps_ = std::move(first);
  return list;
}

CUresult KernelList::launch_step(Step& step, cudaStream_t stream) {
  if (step.function == nullptr) {
    auto byte = static_cast<unsigned char>(step.value);
    return step.element_bytes == 1
               ? driver().set8(step.words[0], byte, step.elements, stream)
               : driver().set32(step.words[0], step.value, step.elements, stream);
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
  return driver().launch(&config, step.function, parameters.data(), nullptr);
}

bool KernelList::launch(c10::ArrayRef<uint64_t> addresses, cudaStream_t stream) {
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (const Patch& patch : steps_[s].patches) {
      steps_[s].words[patch.word] = addresses[patch.address] + patch.offset;
    }
    CUresult status = launch_step(steps_[s], stream);
    if (status == CUDA_SUCCESS) continue;
    if (s == 0) return false;
    TORCH_CHECK(false, "launching kernel ", s + 1, " of ", steps_.size(),
                " of a call of cuDNN anew: CUDA error ", static_cast<int>(status));
  }
  return true;
}

}  // namespace torch_cudnn_ext
