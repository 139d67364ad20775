#include "replay/replay.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <type_traits>
#include <utility>

#include "cuda/capture_mode.h"
#include "cudnn/handle.h"
#include "cudnn/verified.h"

namespace torch_cudnn_ext {

namespace {

std::atomic<int64_t> recorded_calls{0}, replayed_calls{0}, kept_kernels{0};
std::atomic<int64_t> learnt_calls{0}, relaunched_calls{0};

// Layers with the same problem share a plan, and each has its own tensors.
constexpr size_t kEntries = 128;
// Recording takes as long as some ten calls, so the addresses must have repeated before.
constexpr int kCallsBefore = 4, kCallsBeforeNextTry = 1000;
// Graphs take device memory outside PyTorch's allocator: 12 to 50 KB per kernel (on an H200). The
// large graphs of recurrent networks get half of the room.
constexpr int64_t kMostKernels = 32768, kLarge = 64;
// More kernels take the host longer one by one than as a graph.
constexpr int64_t kMostListed = 16;
constexpr size_t kLists = 8;  // one per kind of key
int64_t most_kernels(int64_t added) { return added > kLarge ? kMostKernels / 2 : kMostKernels; }

RunAlone& recording_alone() {
  static auto* alone = new RunAlone([](c10::function_ref<void()> recording) { recording(); });
  return *alone;
}

// The finaliser of SplitMix64 (Steele and others, "Fast splittable pseudorandom number generators",
// 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Clears the CUDA errors of replaying: a later call that reads CUDA's last error would take one for
// its own. An error from before stays.
class OwnErrors {
 public:
  OwnErrors() = default;
  ~OwnErrors() { clear(); }
  OwnErrors(const OwnErrors&) = delete;
  OwnErrors& operator=(const OwnErrors&) = delete;

  void clear() const {
    if (before_ == cudaSuccess) cudaGetLastError();
  }

 private:
  const cudaError_t before_ = cudaPeekAtLastError();
};

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;

// Captures a new stream. A stream of PyTorch's pool may have several users.
class Capture {
 public:
  Capture() {
    goes_on_ = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess &&
               cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
  }
  ~Capture() {
    end();
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  bool goes_on() const { return goes_on_; }
  cudaStream_t stream() const { return stream_; }
  // Null if the work on the stream cannot be a graph.
  Graph end() {
    cudaGraph_t graph = nullptr;
    if (std::exchange(goes_on_, false)) cudaStreamEndCapture(stream_, &graph);
    return Graph(graph);
  }

 private:
  cudaStream_t stream_ = nullptr;
  bool goes_on_;
};

// Null if cuDNN or CUDA reports an error. The caller then calls cuDNN, which says what is wrong.
Graph recorded(c10::function_ref<void()> call) {
  OwnErrors errors;
  Capture capture;
  bool failed = !capture.goes_on();
  if (!failed) {
    c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromExternal(capture.stream(), c10::cuda::current_device()));
    // Work that cuDNN does outside the stream would be missing from the graph, so it must fail.
    CaptureMode strict(cudaStreamCaptureModeThreadLocal);
    try {
      call();
    } catch (const c10::Error&) {
      failed = true;
    }
  }
  Graph graph = capture.end();
  errors.clear();
  cudnn_handle();  // sets the handle to the current stream before the captured one is destroyed
  return failed ? nullptr : std::move(graph);
}

// The number of kernels and memsets; 0 if there is work of another kind, such as a copy of host
// memory, which belongs to the caller and may be freed before the graph is launched.
int64_t kernels_of(cudaGraph_t graph) {
  std::vector<cudaGraphNode_t> nodes = nodes_of(graph, kMostKernels);
  bool no_other = std::all_of(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
    cudaGraphNodeType type;
    return cudaGraphNodeGetType(node, &type) == cudaSuccess &&
           (type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemset);
  });
  return no_other ? static_cast<int64_t>(nodes.size()) : 0;
}

}  // namespace

std::string replay_obstacle(const Device& device, Replay replay) {
  if (replay == Replay::never) return "";
  if (!device.is_cuda()) return c10::str(device.text(), " makes no calls of cuDNN");
  c10::cuda::CUDAGuard guard(device.torch_device());
  if (replay != Replay::kernels || KernelList::can_learn()) return "";
  return c10::str("kernels are repeated one by one with ", platforms_that_replay_kernels(),
                  " alone; CUDA graphs are used");
}

ReplayInfo replay_info() {
  return {recorded_calls, replayed_calls, kept_kernels, learnt_calls, relaunched_calls};
}

void set_recording_alone(RunAlone alone) { recording_alone() = std::move(alone); }

LaunchableGraph LaunchableGraph::record(const ReplayKey& key, CallAt call) {
  LaunchableGraph made;
  if (kept_kernels >= kMostKernels) return made;
  CaptureMode relaxed(cudaStreamCaptureModeRelaxed);
  OwnErrors errors;  // for example, no memory is left for a graph
  Graph graph;
  recording_alone()([&] { graph = recorded([&] { call(key); }); });
  made.kernels_ = graph == nullptr ? 0 : kernels_of(graph.get());
  if (made.kernels_ > 0 && !KernelList::can_learn()) {
    // An engine that was never tested may do work outside the stream.
    bool all_given = KernelList::covers_all({graph.get(), key.addresses()}, kMostKernels);
    if (!all_given) return made;
  }
  if (made.kernels_ == 0 || kept_kernels + made.kernels_ > most_kernels(made.kernels_)) return made;
  cudaError_t status = cudaGraphInstantiate(&made.graph_, graph.get(), 0);
  if (status != cudaSuccess) made.graph_ = nullptr;
  if (made) {
    kept_kernels += made.kernels_;
    status = cudaGraphUpload(made.graph_, c10::cuda::getCurrentCUDAStream());
  }
  if (status != cudaSuccess) return {};
  ++recorded_calls;
  return made;
}

LaunchableGraph::~LaunchableGraph() {
  if (graph_ == nullptr) return;
  OwnErrors errors;  // CUDA may be gone when the process ends
  CaptureMode relaxed(cudaStreamCaptureModeRelaxed);
  cudaGraphExecDestroy(graph_);
  kept_kernels -= kernels_;
}

LaunchableGraph& LaunchableGraph::operator=(LaunchableGraph&& other) noexcept {
  std::swap(graph_, other.graph_);
  std::swap(kernels_, other.kernels_);
  return *this;
}

bool LaunchableGraph::launch() const {
  OwnErrors errors;
  if (cudaGraphLaunch(graph_, c10::cuda::getCurrentCUDAStream()) != cudaSuccess) return false;
  replayed_calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

uint64_t ReplayKey::hash() const {
  uint64_t hash = words_.size();
  for (uint64_t word : words_) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15;  // Fibonacci hashing (Knuth, volume 3, 6.4)
    hash ^= hash >> 32;
  }
  return hash;
}

ReplayKey ReplayKey::kind() const {
  ReplayKey kind = *this;
  for (size_t i = 0; i < addresses_; ++i) {
    if (words_[i] == 0) continue;
    auto same = std::find(words_.begin(), words_.begin() + i, words_[i]) - words_.begin();
    kind.words_[i] = (static_cast<uint64_t>(same) + 1) * kAlignment + words_[i] % kAlignment;
  }
  return kind;
}

ReplayKey ReplayKey::synthetic_addresses(int draw) const {
  constexpr uint64_t kFirst = uint64_t{1} << 44, kApart = uint64_t{1} << 40;
  constexpr uint64_t kPlaces = uint64_t{1} << 30;  // where a tensor may begin
  ReplayKey key = kind();
  for (size_t i = 0; i < addresses_; ++i) {
    uint64_t& word = key.words_[i];
    if (word == 0) continue;
    uint64_t number = word / kAlignment, low = word % kAlignment;
    // The first two draws differ in every bit.
    uint64_t mixed = mix(draw < 2 ? number : number + kPlaces) % kPlaces;
    uint64_t place = draw == 1 ? kPlaces - 1 - mixed : mixed;
    word = kFirst + number * kApart + place * kAlignment + low;
  }
  return key;
}

Replays::Entry& Replays::entry_of(const ReplayKey& key, size_t most) {
  uint64_t hash = key.hash();
  // Layers call in the same order each time, so the search begins at the last entry. A full table
  // replaces its oldest entry.
  auto middle = hashes_.begin() + static_cast<std::ptrdiff_t>(last_);
  auto found = std::find(middle, hashes_.end(), hash);
  if (found == hashes_.end()) found = std::find(hashes_.begin(), middle, hash);
  if (found != hashes_.end() && *found == hash) {
    last_ = static_cast<size_t>(found - hashes_.begin());
    if (entries_[last_].key == key) return entries_[last_];
  } else if (entries_.size() < most) {
    last_ = entries_.size();
    entries_.emplace_back();
    hashes_.emplace_back();
  } else {
    last_ = oldest_++ % entries_.size();
  }
  entries_[last_] = {key, kCallsBefore, {}};
  hashes_[last_] = hash;
  return entries_[last_];
}

std::optional<KernelList>* Replays::list_of(const ReplayKey& key, bool at_once, CallAt call) {
  ReplayKey kind = key.kind();
  auto known = std::find_if(lists_.begin(), lists_.end(),
                            [&](const Learnt& learnt) { return learnt.kind == kind; });
  ++calls_;
  if (known == lists_.end()) {
    if (lists_.size() < kLists) {
      known = lists_.insert(lists_.end(), Learnt{});
    } else {
      // A list that was used recently is not replaced: alternating kinds would be learnt each time.
      known = std::min_element(lists_.begin(), lists_.end(), [](const Learnt& a, const Learnt& b) {
        return a.last_call < b.last_call;
      });
      if (calls_ - known->last_call < kCallsBeforeNextTry) return nullptr;
    }
    // A plan's first call does not get here, so one call less is left.
    *known = {std::move(kind), calls_, kCallsBefore - 1, {}};
  }
  known->last_call = calls_;
  int& left = known->calls_until_learnt;
  if (!known->list && !at_once) --left;
  if (!known->list && (at_once ? left <= kCallsBefore : left < 0)) {
    left = kCallsBeforeNextTry;
    known->list = learn(key, call);
  }
  return &known->list;
}

std::optional<KernelList> Replays::learn(const ReplayKey& key, CallAt call) {
  if (!KernelList::can_learn()) return std::nullopt;
  CaptureMode relaxed(cudaStreamCaptureModeRelaxed);
  OwnErrors errors;  // of queries about a node that CUDA does not answer
  std::optional<KernelList> list;
  recording_alone()([&] {
    auto record_at = [&](const ReplayKey& at) { return recorded([&] { call(at); }); };
    Graph first = record_at(key);
    if (!first || !KernelList::covers_all({first.get(), key.addresses()}, kMostListed)) return;
    // The padding of parameters is what lay on the stack. It is equal in recordings that follow a
    // recording, and not in the first one.
    std::array<ReplayKey, 4> keys{key.synthetic_addresses(0), key.synthetic_addresses(1),
                                  key.synthetic_addresses(2), key};
    std::array<Graph, 4> graphs;
    std::array<RecordedAt, 4> at;
    for (size_t i = 0; i < keys.size(); ++i) {
      graphs[i] = record_at(keys[i]);
      if (!graphs[i]) return;
      at[i] = {graphs[i].get(), keys[i].addresses()};
    }
    list = KernelList::learn({at[0], at[1], at[2]}, at[3], kMostListed);
  });
  if (list) ++learnt_calls;
  return list;
}

bool Replays::relaunch(const ReplayKey& key, bool at_once, CallAt call) {
  std::optional<KernelList>* list = list_of(key, at_once, call);
  if (list == nullptr || !*list) return false;
  bool launched = false;
  try {
    launched = (*list)->launch(key.addresses(), c10::cuda::getCurrentCUDAStream());
  } catch (const c10::Error&) {
    list->reset();  // the next call goes to cuDNN
    throw;
  }
  if (launched) {
    relaunched_calls.fetch_add(1, std::memory_order_relaxed);
  } else {
    list->reset();  // the caller calls cuDNN
  }
  return launched;
}

void Replays::forget() {
  lists_.clear();
  entries_.clear();
  hashes_.clear();
  last_ = oldest_ = 0;
}

void Replays::run(const ReplayKey& key, Replay replay, CallAt call) {
  bool may_replay = replay != Replay::never;
  if (may_replay) {
    // A user's capture is to hold cuDNN's kernels, not a nested graph.
    auto status = c10::cuda::currentStreamCaptureStatusMayInitCtx();
    may_replay = status == c10::cuda::CaptureStatus::None;
  }
  bool by_kernels = replay == Replay::kernels || replay == Replay::kernels_at_once;
  if (may_replay && by_kernels && has_run_ &&
      relaunch(key, replay == Replay::kernels_at_once, call))
    return;
  if (may_replay && replay != Replay::kernels_at_once) {
    // A plan that is measured keeps one graph: there are many such plans, and graphs of recurrent
    // networks are large.
    bool at_once = replay == Replay::graphs_at_once;
    Entry& entry = entry_of(key, at_once ? 1 : kEntries);
    int& left = entry.calls_until_recorded;
    if (!entry.graph && !at_once) --left;
    if (!entry.graph && (at_once ? left <= kCallsBefore : left < 0) && has_run_) {
      left = kCallsBeforeNextTry;
      entry.graph = LaunchableGraph::record(key, call);
    }
    if (entry.graph && entry.graph.launch()) return;
    entry.graph = {};  // the launch failed: cuDNN is called below
  }
  call(key);
  has_run_ = true;
}

void ReplayedPlan::unload(c10::function_ref<void()> drop) {
  replays_.forget();
  OwnErrors errors;
  CaptureMode relaxed(cudaStreamCaptureModeRelaxed);
  drop();
}

}  // namespace torch_cudnn_ext
