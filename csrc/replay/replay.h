// Repeats the work of a cuDNN call without calling cuDNN. A few kernels are launched one by one,
// with tensors at any addresses (kernel_list.h). Any other work is kept as a CUDA graph, for calls
// with the same addresses. For a few kernels, both ways take the host 5 to 15 us less than cuDNN's
// graph API and 70 to 230 us less than its classic convolutions. For a recurrent network they save
// thousands of microseconds (measured on an H200 with cuDNN 9.19). Knows nothing of operators.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/plan.h"
#include "replay/kernel_list.h"

namespace torch_cudnn_ext {

// Why calls of the process on this device cannot be repeated as asked, or are repeated as graphs
// instead of kernels; empty if nothing is in the way.
std::string replay_obstacle(const Device& device, Replay replay);

struct ReplayInfo {
  int64_t recorded, replayed;  // calls as graphs
  int64_t kernels;             // in all graphs that are kept
  int64_t learnt, relaunched;  // calls whose kernels are launched one by one
};
ReplayInfo replay_info();

// Calls its argument, which makes a recording, at a time when no other thread begins to wait for
// the whole device. Such a wait fails while a stream is captured. It may also make no call.
using RunAlone = std::function<void(c10::function_ref<void()>)>;
void set_recording_alone(RunAlone alone);

// Everything that a call of a plan depends on: addresses, then numbers.
class ReplayKey {
 public:
  ReplayKey() = default;
  ReplayKey(std::initializer_list<const void*> addresses) {
    for (const void* address : addresses) push(address);
  }
  void push(const void* address) {
    TORCH_INTERNAL_ASSERT_DEBUG_ONLY(addresses_ == words_.size(), "an address after a number");
    words_.push_back(reinterpret_cast<uint64_t>(address));
    addresses_ = words_.size();
  }
  void push(double number) {
    uint64_t word;
    std::memcpy(&word, &number, sizeof(word));
    words_.push_back(word);
  }
  bool operator==(const ReplayKey& other) const { return words_ == other.words_; }
  uint64_t hash() const;

  c10::ArrayRef<uint64_t> addresses() const { return {words_.data(), addresses_}; }
  // The first n addresses.
  template <size_t n>
  std::array<void*, n> addresses() const {
    std::array<void*, n> first;
    for (size_t i = 0; i < n; ++i) first[i] = reinterpret_cast<void*>(words_[i]);
    return first;
  }
  // A key that is equal for calls that differ only in the addresses of their tensors. It holds the
  // numbers, which addresses are null or equal, and how they are aligned.
  ReplayKey kind() const;
  // A key of the same kind at addresses that nothing uses. `draw` is 0, 1 or 2.
  ReplayKey synthetic_addresses(int draw) const;

 private:
  c10::SmallVector<uint64_t, 12> words_;
  size_t addresses_ = 0;  // how many of the first words are addresses
};

// Calls cuDNN with the tensors at a key's addresses. The call knows the numbers.
using CallAt = c10::function_ref<void(const ReplayKey&)>;

// A CUDA graph that can be launched; none by default.
class LaunchableGraph {
 public:
  LaunchableGraph() = default;
  // The work that `call` puts on the current stream; empty if it cannot be recorded.
  static LaunchableGraph record(const ReplayKey& key, CallAt call);
  ~LaunchableGraph();
  LaunchableGraph(LaunchableGraph&& other) noexcept { *this = std::move(other); }
  LaunchableGraph& operator=(LaunchableGraph&& other) noexcept;
  explicit operator bool() const { return graph_ != nullptr; }
  bool launch() const;  // on the current stream; false if CUDA reports an error

 private:
  cudaGraphExec_t graph_ = nullptr;
  int64_t kernels_ = 0;
};

// The calls of one plan. A plan belongs to one thread and one device.
class Replays {
 public:
  // Puts the work of `call` on the current stream. The work must be cuDNN's alone, and use only
  // memory that the key names.
  void run(const ReplayKey& key, Replay replay, CallAt call);
  void forget();

 private:
  struct Entry {
    ReplayKey key;
    int calls_until_recorded;
    LaunchableGraph graph;
  };
  Entry& entry_of(const ReplayKey& key, size_t most);
  struct Learnt {
    ReplayKey kind;
    uint64_t last_call = 0;
    int calls_until_learnt = 0;
    std::optional<KernelList> list;  // nullopt if the kernels cannot be launched one by one
  };
  // Null if there are too many kinds.
  std::optional<KernelList>* list_of(const ReplayKey& key, bool at_once, CallAt call);
  static std::optional<KernelList> learn(const ReplayKey& key, CallAt call);
  // False if nothing was launched.
  bool relaunch(const ReplayKey& key, bool at_once, CallAt call);

  std::vector<Learnt> lists_;
  uint64_t calls_ = 0;  // calls of list_of

  std::vector<Entry> entries_;
  // Hashes of the entries' keys. A lookup scans all of them if no address repeats.
  std::vector<uint64_t> hashes_;
  size_t last_ = 0;    // the entry that was found or made last
  size_t oldest_ = 0;  // the next entry to replace in a full table, modulo its size
  // cuDNN's first call does preparations that cannot be recorded.
  bool has_run_ = false;
};

// A plan that calls cuDNN through `replays_`.
class ReplayedPlan : public Plan {
 public:
  using Plan::Plan;

 protected:
  // For the destructor of a plan that owns code. Frees the graphs, which hold the code's kernels,
  // and then calls `drop`, which frees the code. Disturbs no thread's capture.
  void unload(c10::function_ref<void()> drop);

  Replays replays_;
};

}  // namespace torch_cudnn_ext
