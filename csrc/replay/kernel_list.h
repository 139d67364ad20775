// The kernels that a call of cuDNN puts on its stream, to be launched again with tensors that lie
// elsewhere. Which bytes of their parameters are addresses is found out from graphs of the same
// call with tensors at made-up addresses, which nothing reads: capturing runs no kernel.
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

// In the order in which they were recorded; none where there are more, or CUDA does not tell them.
std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph, size_t most);

// A call recorded with its tensors at these addresses.
struct RecordedAt {
  cudaGraph_t graph;
  c10::ArrayRef<uint64_t> addresses;
};

class KernelList {
 public:
  // On a GPU and with a cuDNN whose engines were seen to do all their work on the current stream.
  // What one does behind a capture's back would be done at made-up addresses.
  static bool can_learn();

  // Of three recordings at made-up addresses, which differ in every address and by other amounts,
  // and of one at real ones, which the list has to give. None where anything else differs, where
  // an address is found nowhere or may be another's, where there is work but kernels and memsets
  // one behind the other, and where there is more than `most` of it. An offset is less than half of
  // what is between two addresses.
  static std::optional<KernelList> learn(const std::array<RecordedAt, 3>& synthetic_addresses,
                                         const RecordedAt& real, size_t most);

  // Whether a call's kernels are given memory at all of its addresses. What cuDNN does behind a
  // capture's back is not among them: it would be done at made-up ones, or never again.
  static bool covers_all(const RecordedAt& call, size_t most);

  // On a stream, with the tensors at these addresses, in the order of those that it was learnt of.
  // False where nothing was launched, since CUDA refuses it; throws where that is behind the first.
  bool launch(c10::ArrayRef<uint64_t> addresses, cudaStream_t stream);

 private:
  struct Patch {
    size_t word, address;  // places in words_ of a step, and of the addresses
    uint64_t offset;
  };
  // A kernel, or without one a memset of words_[0].
  struct Step {
    CUfunction function = nullptr;
    CUkernel kernel = nullptr;        // that the function is of; null where a module's
    std::array<unsigned, 6> shape{};  // of the grid and of a block
    unsigned shared_bytes = 0;
    std::vector<CUlaunchAttribute> attributes;
    std::vector<size_t> parameters;  // where each begins in `words`, or
    size_t buffer_bytes = 0;         // of all of them at once
    std::vector<uint64_t> words;
    std::vector<Patch> patches;
    unsigned value = 0, element_bytes = 0;  // of a memset
    size_t elements = 0;
  };
  // None where there is nothing to do, or something of another kind.
  static std::optional<std::vector<Step>> read(const std::vector<cudaGraphNode_t>& nodes);
  // Of steps that each wait for the one before.
  static std::optional<std::vector<Step>> read_chain(cudaGraph_t graph, size_t most);
  static bool read_kernel(cudaGraphNode_t node, Step& step);
  static bool read_buffer(void* const* extra, Step& step);
  static bool read_memset(cudaGraphNode_t node, Step& step);
  static bool alike(const Step& a, const Step& b);
  static std::optional<Patch> patch_of(size_t word, const std::array<uint64_t, 3>& found,
                                       const std::array<RecordedAt, 3>& synthetic_addresses);
  static CUresult launch_step(Step& step, cudaStream_t stream);
  // With as much shared memory as it needs, which is of the function and not of a launch.
  static CUresult launch_with_memory(Step& step, cudaStream_t stream);
  static bool give_memory(const Step& step);
  static int most_memory(const Step& step);  // in bytes; 0 where CUDA does not tell it
  void patch_addresses(c10::ArrayRef<uint64_t> addresses);

  std::vector<Step> steps_;
};

}  // namespace torch_cudnn_ext
