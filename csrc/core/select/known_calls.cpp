#include "core/select/known_calls.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/errors.h"
#include "core/override_guard.h"
#include "core/policy/levels.h"
#include "core/select/recording.h"
#include "core/tensors.h"
#include "torch/internals.h"

namespace torch_cudnn_ext {

namespace {

constexpr int kRoleCount = static_cast<int>(Role::kCount);
thread_local ExecutionWatch* watch = nullptr;

// What one thread learnt, by the key's hash. A newer key takes the place of an older one. Plans are
// referred to, not kept: the plan store says when a plan ends.
struct Learnt {
  static constexpr size_t kPlaces = 1024;
  std::array<std::unique_ptr<KnownCall>, kPlaces> calls;
  uint64_t generation = 0;

  std::unique_ptr<KnownCall>& at(const Key& key) { return calls[key.hash() % kPlaces]; }
};
Learnt& learnt_here() {
  static thread_local auto learnt = std::make_unique<Learnt>();
  return *learnt;
}

// Whether the tensors begin at the same element of the same memory.
bool begin_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset() && a.scalar_type() == b.scalar_type();
}

// `t` as a view of `whole`, whose first element it shares.
bool learn_view(KnownView& view, const at::Tensor& t, const at::Tensor& whole) {
  view.is_whole = t.is_same(whole);
  if (view.is_whole) return true;
  if (t.dim() > kMaxDims) return false;
  view.sizes = Dims(t.sizes());
  view.strides = Dims(t.strides());
  return true;
}

bool share_memory(c10::ArrayRef<const at::Tensor*> tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (tensors[i]->is_alias_of(*tensors[j])) return true;
    }
  }
  return false;
}

}  // namespace

at::Tensor KnownView::of(const at::Tensor& t) const {
  return is_whole ? t : strided_view(t, sizes, strides);
}

ExecutionWatch::ExecutionWatch() : outer_(std::exchange(watch, this)) {}
ExecutionWatch::~ExecutionWatch() { watch = outer_; }

void ExecutionWatch::before_run(const Call& call, const Device& device, const Bindings& bindings) {
  if (watch == nullptr) return;
  ++watch->runs_;
  watch->call_ = call;
  watch->device_ = device;
  watch->before_ = bindings;
}

void ExecutionWatch::after_run(const Bindings& bindings) {
  if (watch != nullptr) watch->after_ = bindings;
}

bool ExecutionWatch::learn_inputs(KnownCall& known,
                                  c10::ArrayRef<const at::Tensor*> arguments) const {
  c10::SmallVector<bool, 8> is_read;
  for (const at::Tensor* argument : arguments) is_read.push_back(argument->numel() == 0);
  for (int i = 0; i < kRoleCount; ++i) {
    const at::Tensor& t = before_.tensors[i];
    if (!t.defined()) continue;
    auto found = std::find_if(arguments.begin(), arguments.end(), [&](const at::Tensor* argument) {
      return argument->numel() > 0 && begin_alike(t, *argument);
    });
    KnownCall::Input input{static_cast<Role>(i), static_cast<int>(found - arguments.begin()), {}};
    if (found == arguments.end() || !learn_view(input.view, t, **found)) return false;
    is_read[input.argument] = true;
    known.inputs.push_back(input);
  }
  return std::all_of(is_read.begin(), is_read.end(), [](bool read) { return read; });
}

bool ExecutionWatch::learn_result(KnownCall& known, const at::Tensor& result) const {
  KnownCall::Result& learnt = known.results.emplace_back();
  if (!result.defined()) return true;
  if (result.requires_grad()) return false;  // a plan records no gradient
  if (result.numel() == 0) {
    if (result.dim() > kMaxDims || !result.is_contiguous()) return false;
    learnt.kind = KnownCall::Result::Kind::empty;
    learnt.view.sizes = Dims(result.sizes());
    learnt.dtype = result.scalar_type();
    return true;
  }
  learnt.kind = KnownCall::Result::Kind::output;
  int found = 0;
  for (int i = 0; i < kRoleCount; ++i) {
    const at::Tensor& t = after_.tensors[i];
    if (before_.tensors[i].defined() || !t.defined() || !begin_alike(t, result)) continue;
    ++found;
    learnt.role = static_cast<Role>(i);
    if (!learn_view(learnt.view, result, t)) return false;
  }
  return found == 1;
}

bool ExecutionWatch::learn(KnownCall& known, c10::ArrayRef<const at::Tensor*> arguments,
                           c10::ArrayRef<at::Tensor> results) const {
  bool lasts = runs_ == 1 && call_.decision->is_kept && call_.decision->is_valid();
  if (!lasts) return false;
  known.decision = call_.decision;
  if (before_.replay != Replay::never) return true;
  known.leads_to_default = call_.plan->algorithm.is_baseline();
  known.device = device_;
  known.plan = call_.plan;
  known.alpha = before_.alpha;
  known.beta = before_.beta;
  known.epsilon = before_.epsilon;
  known.momentum = before_.momentum;
  known.leads_to_plan = !share_memory(arguments) && learn_inputs(known, arguments) &&
                        std::all_of(results.begin(), results.end(), [&](const at::Tensor& result) {
                          return learn_result(known, result);
                        });
  return true;
}

const KnownCall* find_known_call(const Key& key) {
  Learnt& learnt = learnt_here();
  if (learnt.generation != decision_generation() || is_dry_run()) return nullptr;
  const KnownCall* known = learnt.at(key).get();
  if (known == nullptr || !(known->key == key)) return nullptr;
  return known->decision->is_valid() ? known : nullptr;
}

void remember_known_call(std::unique_ptr<KnownCall> known) {
  Learnt& learnt = learnt_here();
  uint64_t now = decision_generation();
  if (learnt.generation != now) {
    for (auto& call : learnt.calls) call.reset();
    learnt.generation = now;
  }
  auto& place = learnt.at(known->key);
  place = std::move(known);
}

// With the same care as execute().
bool run_known(const KnownCall& known, c10::function_ref<bool()> run) {
  OverrideGuard plain;
  ExcludeKeysGuard no_autocast(c10::autocast_dispatch_keyset);
  const DecisionRecord* record = known.decision->record;
  note_executed(record);
  try {
    ProfiledRun range(*record);
    if (!run()) return false;
  } catch (const c10::OutOfMemoryError&) {
    return false;
  } catch (const UnsupportedAtRun&) {
    return false;
  }
  count_call(*record);
  record_call({record, {}});
  count_remembered_call();
  return true;
}

bool run_known_plan(const KnownCall& known, c10::ArrayRef<const at::Tensor*> arguments,
                    at::Tensor* results) {
  std::shared_ptr<Plan> plan = known.plan.lock();
  if (plan == nullptr) return false;
  Bindings bindings;
  bindings.alpha = known.alpha;
  bindings.beta = known.beta;
  bindings.epsilon = known.epsilon;
  bindings.momentum = known.momentum;
  for (const KnownCall::Input& input : known.inputs) {
    bindings[input.role] = input.view.of(*arguments[input.argument]);
  }
  bool ran = run_known(known, [&] {
    plan->run(bindings);
    retain_for_graph(plan, known.device);
    return true;
  });
  if (!ran) return false;
  using Kind = KnownCall::Result::Kind;
  for (size_t i = 0; i < known.results.size(); ++i) {
    const KnownCall::Result& result = known.results[i];
    if (result.kind == Kind::output) results[i] = result.view.of(bindings[result.role]);
    if (result.kind != Kind::empty) continue;
    results[i] = at::empty(result.view.sizes, arguments[0]->options().dtype(result.dtype));
  }
  return true;
}

}  // namespace torch_cudnn_ext
