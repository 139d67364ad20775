// What calls of cuDNN put on their stream, to be put there again without cuDNN. Where it is a few
// kernels, they are launched one by one, wherever the tensors lie (cuda/kernel_list.h). Else it is
// kept as a CUDA graph, for a call that comes again with the same addresses. Of a few kernels,
// either takes the host 5 to 15 us less than cuDNN's graph API, 70 to 230 less than its older entry
// points for a convolution, and thousands less of a recurrent network's (an H200, cuDNN 9.19).
// Knows nothing of the operators.
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
#include <vector>

#include "core/plan.h"
#include "replay/kernel_list.h"

namespace torch_cudnn_ext {

// Process-wide; off, every call is cuDNN's. What was recorded is kept.
void set_replay(bool on);
// Off, graphs alone are used, for tests of theirs.
void set_relaunch(bool on);

struct ReplayInfo {
  int64_t recorded, replayed;  // calls of the process
  int64_t kernels;             // that its graphs hold now
  int64_t learnt, relaunched;  // calls whose kernels were launched one by one
};
ReplayInfo replay_info();

// While a stream is captured, no thread can begin to wait for the whole device: the call fails. So
// this calls its argument, a recording, while other threads do not begin to, or does not call it.
using RunAlone = std::function<void(c10::function_ref<void()>)>;
void set_recording_alone(RunAlone alone);

// All that a call of a plan depends on: addresses, and behind them numbers.
class ReplayKey {
 public:
  ReplayKey() = default;
  ReplayKey(std::initializer_list<const void*> addresses) {
    for (const void* address : addresses) push(address);
  }
  void push(const void* address) {
    TORCH_INTERNAL_ASSERT_DEBUG_ONLY(addresses_ == words_.size(), "an address behind a number");
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
  // The first of them, to be bound to names.
  template <size_t n>
  std::array<void*, n> addresses() const {
    std::array<void*, n> first;
    for (size_t i = 0; i < n; ++i) first[i] = reinterpret_cast<void*>(words_[i]);
    return first;
  }
  // What calls have in common that differ in where their tensors lie: the numbers, which addresses
  // are null or the same, and how they are aligned.
  ReplayKey kind() const;
  // Of the same kind, at addresses that are nobody's: one of three such keys.
  ReplayKey synthetic_addresses(int draw) const;

 private:
  c10::SmallVector<uint64_t, 12> words_;
  size_t addresses_ = 0;  // which the words begin with
};

// Calls cuDNN with the tensors where a key says, which its numbers do not tell.
using CallAt = c10::function_ref<void(const ReplayKey&)>;

// A CUDA graph that can be launched; none by default.
class LaunchableGraph {
 public:
  LaunchableGraph() = default;
  // Of what `call` puts on the current stream; none where that cannot be had.
  static LaunchableGraph record(const ReplayKey& key, CallAt call);
  ~LaunchableGraph();
  LaunchableGraph(LaunchableGraph&& other) noexcept { *this = std::move(other); }
  LaunchableGraph& operator=(LaunchableGraph&& other) noexcept;
  explicit operator bool() const { return graph_ != nullptr; }
  bool launch() const;  // on the current stream; false where CUDA refuses it

 private:
  cudaGraphExec_t graph_ = nullptr;
  int64_t kernels_ = 0;
};

// The calls of one plan: of one thread and one device.
class Replays {
 public:
  // Does on the current stream what `call` does there: cuDNN's work alone, on memory that the key
  // names.
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
    std::optional<KernelList> list;  // none where its kernels cannot be launched so
  };
  // Null of kinds that are too many.
  std::optional<KernelList>* list_of(const ReplayKey& key, bool at_once, CallAt call);
  static std::optional<KernelList> learn(const ReplayKey& key, CallAt call);
  // False where nothing was launched.
  bool relaunch(const ReplayKey& key, bool at_once, CallAt call);

  std::vector<Learnt> lists_;
  uint64_t calls_ = 0;  // that asked for a list

  std::vector<Entry> entries_;
  // Of their keys. Where addresses never come back, all are searched.
  std::vector<uint64_t> hashes_;
  size_t last_ = 0;    // found or made
  size_t oldest_ = 0;  // of a full table, counted on
  // cuDNN makes ready at a first call what could not be recorded.
  bool has_run_ = false;
};

// A plan that calls cuDNN through `replays_`.
class ReplayedPlan : public Plan {
 public:
  using Plan::Plan;

 protected:
  // Called by the destructor of a plan that owns code, which `drop` drops. Graphs of it go before,
  // and no capture of any thread is disturbed.
  void unload(c10::function_ref<void()> drop);

  Replays replays_;
};

}  // namespace torch_cudnn_ext
