#include "core/select/decision_record.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/operator.h"
#include "core/plan.h"
#include "core/policy/levels.h"
#include "core/writer.h"

namespace torch_cudnn_ext {

namespace {

constexpr size_t kMaxPasses = 256;
std::array<std::atomic<const DecisionRecord*>, kMaxPasses> last_by_pass;
std::atomic<const DecisionRecord*> last_of_all;
thread_local const DecisionRecord* last_here = nullptr;

size_t index_of_pass(const Problem& problem) {
  return (problem.index() * 8 +
          std::visit([](const auto& p) { return static_cast<size_t>(p.pass); }, problem)) %
         kMaxPasses;
}

// The policy for passes that must run this algorithm, as autograd nodes save it.
std::string policy_of_coupled(const Request& request, const Algorithm& algorithm) {
  Policy pins;
  std::vector<Problem> together = operator_of(request.problem).coupled(request.problem);
  if (!together.empty()) together.push_back(request.problem);
  for (const Problem& member : together) {
    pins.selections[op_of(member)] = {Selection::Kind::pinned, algorithm};
  }
  return saved_with(request.policy, pins, family_of(request.problem));
}

// Orders records by all but the time that the decision took.
struct Less {
  static auto key(const DecisionRecord& r) {
    return std::tie(r.problem, r.algorithm, r.why, r.device, r.policy, r.coupled_policy,
                    r.workspace_bytes);
  }
  bool operator()(const std::unique_ptr<DecisionRecord>& a,
                  const std::unique_ptr<DecisionRecord>& b) const {
    return key(*a) < key(*b);
  }
};

struct Records {
  std::mutex mutex;
  std::set<std::unique_ptr<DecisionRecord>, Less> all;
};
Records& records() {
  static auto* made = new Records();
  return *made;
}

}  // namespace

const DecisionRecord* record_decision(const Request& request, const Algorithm& algorithm,
                                      const std::string& why,
                                      const std::optional<int64_t>& workspace_bytes,
                                      double decision_ms) {
  std::string coupled_policy = policy_of_coupled(request, algorithm);
  int64_t writer = writer_number(coupled_policy);
  std::unique_ptr<DecisionRecord> made(
      new DecisionRecord{op_of(request.problem), problem_text(request.problem), algorithm.text(),
                         why, request.device.text(), request.policy.text, coupled_policy,
                         workspace_bytes, decision_ms, writer, index_of_pass(request.problem)});
  std::unique_lock<std::mutex> lock(records().mutex);
  const DecisionRecord& record = **records().all.insert(std::move(made)).first;
  lock.unlock();
  if (verbose()) {
    std::fprintf(stderr, "torch_cudnn_ext: %s on %s -> %s (%s; workspace %s; chosen in %.1f ms)\n",
                 record.problem.c_str(), record.device.c_str(), record.algorithm.c_str(),
                 record.why.c_str(), memory_text(workspace_bytes).c_str(), record.decision_ms);
  }
  return &record;
}

std::vector<const DecisionRecord*> records_executed() {
  std::lock_guard<std::mutex> lock(records().mutex);
  std::vector<const DecisionRecord*> executed;
  for (const auto& record : records().all) {
    if (record->calls.load(std::memory_order_relaxed) > 0) executed.push_back(record.get());
  }
  return executed;
}

void note_executed(const DecisionRecord* record) {
  last_here = record;
  last_by_pass[record->pass].store(record, std::memory_order_release);
  last_of_all.store(record, std::memory_order_release);
}

ProfiledRun::ProfiledRun(const DecisionRecord& record) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (C10_LIKELY(!callbacks.has_value())) return;
  range_.emplace(std::move(*callbacks));
  range_->before(c10::str(record.op, " ", record.algorithm));
}

void forget_executed() { last_here = nullptr; }
const DecisionRecord* last_of_thread() { return last_here; }

const DecisionRecord* last_decision(const std::optional<std::string>& op) {
  if (!op) return last_of_all.load(std::memory_order_acquire);
  for (const auto& slot : last_by_pass) {
    const DecisionRecord* record = slot.load(std::memory_order_acquire);
    if (record != nullptr && record->op == *op) return record;
  }
  find_pass(*op);  // throws for a name that is none
  return nullptr;
}

at::Tensor writer_of_last(const at::Tensor& like) {
  return make_writer(last_here == nullptr ? 0 : last_here->writer, like);
}

}  // namespace torch_cudnn_ext
