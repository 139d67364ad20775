// The kernels that a cuDNN call puts on its stream, to be launched again with tensors at other
// addresses. Recordings of the same call at synthetic addresses show which bytes of the parameters
// are addresses. Nothing reads memory at synthetic addresses, since a capture runs no kernel.
#pragma once

#include <c10/util/ArrayRef.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace torch_cudnn_ext {

constexpr uint64_t kAlignment = 512;  // bytes, as PyTorch's allocator aligns

// The nodes in the order of recording. Empty if there are more than `most`, or if CUDA does not
// list them.
std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph, size_t most);

// A call recorded with its tensors at these addresses.
struct RecordedAt {
  cudaGraph_t graph;
  c10::ArrayRef<uint64_t> addresses;
};

class KernelList {
 public:
  // Whether this cuDNN on this GPU was tested, and its engines do all of their work on the current
  // stream. Work that a capture does not hold back would run at synthetic addresses.
  static bool can_learn();

  // Learns from three recordings at synthetic addresses and one at real addresses. The synthetic
  // addresses differ in every address and by different amounts. The list must reproduce the
  // recording at real addresses. Returns nullopt if anything but the addresses differs, if an
  // address is found nowhere or could be another's, if there is work other than a chain of kernels
  // and memsets, or if the chain is longer than `most`. An offset from an address is less than half
  // of the distance between two addresses.
  static std::optional<KernelList> learn(const std::array<RecordedAt, 3>& synthetic_addresses,
                                         const RecordedAt& real, size_t most);

  // Whether the kernels of a call get all of its addresses. If not, cuDNN does work that a capture
  // does not show. That work would run at synthetic addresses, or not at all.
  static bool covers_all(const RecordedAt& call, size_t most);

  // Launches the kernels on a stream with the tensors at these addresses. The addresses are in the
  // same order as those that the list was learnt from. Returns false if CUDA does not launch the
  // first kernel; then nothing was launched. Throws if CUDA does not launch a later one.
  bool launch(c10::ArrayRef<uint64_t> addresses, cudaStream_t stream);

 private:
  struct Patch {
    size_t word, address;  // positions in the step's words and in the addresses
    uint64_t offset;
  };
  // A kernel, or a memset at words[0] if there is no function.
  struct Step {
    CUfunction function = nullptr;
    CUkernel kernel = nullptr;        // owns `function`; null for a module's function
    std::array<unsigned, 6> shape{};  // of the grid and of a block
    unsigned shared_bytes = 0;
    std::vector<CUlaunchAttribute> attributes;
    std::vector<size_t> parameters;  // where each begins in `words`
    size_t buffer_bytes = 0;         // not 0: `words` holds all parameters as one buffer
    std::vector<uint64_t> words;
    std::vector<Patch> patches;
    unsigned value = 0, element_bytes = 0;  // of a memset
    size_t elements = 0;
  };
  // The nodes as steps; nullopt if there are no nodes, or one is neither a kernel nor a memset.
  static std::optional<std::vector<Step>> read(const std::vector<cudaGraphNode_t>& nodes);
  // The same for a graph in which each node waits for the one before.
  static std::optional<std::vector<Step>> read_chain(cudaGraph_t graph, size_t most);
  static bool read_kernel(cudaGraphNode_t node, Step& step);
  static bool read_buffer(void* const* extra, Step& step);
  static bool read_memset(cudaGraphNode_t node, Step& step);
  static bool alike(const Step& a, const Step& b);
  static std::optional<Patch> patch_of(size_t word, const std::array<uint64_t, 3>& found,
                                       const std::array<RecordedAt, 3>& synthetic_addresses);
  static CUresult launch_step(Step& step, cudaStream_t stream);
  // Gives the function the shared memory that it needs: the limit belongs to the function, not to
  // the launch.
  static CUresult launch_with_memory(Step& step, cudaStream_t stream);
  static bool give_memory(const Step& step);
  static int most_memory(const Step& step);  // in bytes; 0 if CUDA does not tell
  void patch_addresses(c10::ArrayRef<uint64_t> addresses);

  std::vector<Step> steps_;
};

}  // namespace torch_cudnn_ext
