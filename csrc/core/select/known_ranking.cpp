#include "core/select/known_ranking.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/operator.h"
#include "core/policy/policy_text.h"
#include "core/select/admit.h"
#include "core/tune/measure.h"

namespace torch_cudnn_ext {

namespace {

using Status = Measurement::Status;

// Takes what the constraints exclude out of the order, and puts it at the end.
void exclude(std::vector<Measurement>& measurements, const Request& request) {
  const auto& [problem, policy, device] = request;
  for (Measurement& m : measurements) {
    if (m.status != Status::ok && m.status != Status::unstable) continue;
    std::string reason = exclusion_by_backend(m.algorithm.backend, policy, device);
    if (reason.empty()) reason = exclusion_by_notes(m.notes, policy);
    if (reason.empty()) {
      reason = exclusion_by_workspace(m.workspace_bytes.value_or(0), policy, device);
    }
    m.exclude_if(reason);
  }
  std::stable_partition(measurements.begin(), measurements.end(),
                        [](const Measurement& m) { return m.status != Status::excluded; });
}

bool was_not_tried(const Measurement& m) {
  return m.reason.rfind(kLeftOut, 0) == 0 || m.reason.rfind(kOutOfTime, 0) == 0;
}

// The table's ranking under constraints that admit more.
std::optional<KnownRanking> ranking_under_others(const TableKey& key, const Request& request) {
  const std::string family = family_of(request.problem);
  const Policy asked = parse_policy(key.constraints, family);
  for (TableEntry& entry : tuning_table::entries_of(key.problem, key.device)) {
    if (!parse_policy(entry.constraints, family).admits_all_of(asked)) continue;
    std::string under = entry.constraints.empty() ? "no constraints" : entry.constraints;
    auto admitted = admitted_ranking({std::move(entry.measurements), "", under, ""}, request);
    if (admitted) return admitted;
  }
  return std::nullopt;
}

// A problem's text without the sizes of its batch and space, and these sizes.
struct Shape {
  std::string rest;
  std::vector<double> sizes;
};
Shape shape_of(const Problem& problem) {
  const Operator& op = operator_of(problem);
  Shape shape;
  std::string text = problem_text(problem);
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find(' ', begin), text.size());
    std::string token = text.substr(begin, end - begin);
    begin = end + 1;
    std::string field = token.substr(0, token.find('='));
    std::vector<BatchSize> batches = op.batch_sizes();
    auto batch = std::find_if(batches.begin(), batches.end(),
                              [&](const BatchSize& each) { return each.field == field; });
    size_t open = token.find('['), close = token.find(']');
    if (batch != batches.end() && close != std::string::npos) {
      // Space comes after the channels. A recurrent network has none.
      bool has_space = batch->dim == 0 && !op.is_always_coupled();
      std::string kept;
      int dim = 0;
      for (size_t at = open + 1; at < close; ++dim) {
        size_t next = std::min(token.find(',', at), close);
        std::string size = token.substr(at, next - at);
        bool is_free = dim == batch->dim || (has_space && dim >= 2);
        if (is_free) shape.sizes.push_back(std::stod(size));
        kept += is_free ? "?," : size + ",";
        at = next + 1;
      }
      token = token.substr(0, open) + kept + token.substr(close);
    }
    shape.rest += token + " ";
  }
  return shape;
}

// How many times larger one is than the other, in all sizes together, as a logarithm. Infinite for
// problems that differ in more.
double distance(const Shape& a, const Shape& b) {
  if (a.rest != b.rest || a.sizes.size() != b.sizes.size()) return HUGE_VAL;
  double sum = 0;
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    sum += std::abs(std::log(std::max(a.sizes[i], 1.0) / std::max(b.sizes[i], 1.0)));
  }
  return sum;
}

// The distance to a line of a store, which another version may have written.
double distance_to_line(const std::string& line, const Shape& wanted) {
  try {
    return distance(shape_of(parse_problem(line)), wanted);
  } catch (const c10::Error&) {
    return HUGE_VAL;
  }
}

}  // namespace

TableKey key_of(const Request& request) {
  return {problem_text(request.problem), fingerprint_of(request.device),
          request.policy.policy.constraints_text(request.problem)};
}

std::optional<KnownRanking> admitted_ranking(KnownRanking known, const Request& request) {
  std::vector<Measurement>& rows = known.measurements;
  bool is_own = known.device.empty() && known.constraints.empty();
  if (is_own || rows.empty()) return known;
  Algorithm best = rows[0].algorithm;
  exclude(rows, request);
  // What was not tried, since the best was so much faster, may be the best of what is left.
  bool is_other =
      !(rows[0].algorithm == best) && std::any_of(rows.begin(), rows.end(), was_not_tried);
  bool serves = rows[0].status == Status::ok && !is_other;
  return serves ? std::optional(std::move(known)) : std::nullopt;
}

std::optional<KnownRanking> known_ranking(const Request& request) {
  if (!are_rankings_kept(request.policy, request.device)) return std::nullopt;
  TableKey key = key_of(request);
  auto known = tuning_table::find(key);
  if (known) known = admitted_ranking(std::move(*known), request);
  return known ? known : ranking_under_others(key, request);
}

std::vector<std::pair<std::string, KnownRanking>> nearest_rankings(const Request& request) {
  constexpr size_t kMost = 3;
  TableKey key = key_of(request);
  Shape wanted = shape_of(request.problem);
  std::string op = op_of(request.problem) + " ";
  std::vector<std::pair<double, std::string>> near;
  for (const std::string& line : tuning_table::problems(key.device, key.constraints)) {
    if (line.rfind(op, 0) != 0 || line == key.problem) continue;
    double away = distance_to_line(line, wanted);
    if (away < HUGE_VAL) near.emplace_back(away, line);
  }
  std::sort(near.begin(), near.end());
  near.erase(std::unique(near.begin(), near.end()), near.end());
  std::vector<std::pair<std::string, KnownRanking>> rankings;
  for (const auto& [away, line] : near) {
    auto known = tuning_table::find({line, key.device, key.constraints});
    bool has_ranked =
        known && !known->measurements.empty() && known->measurements[0].status == Status::ok;
    if (has_ranked) rankings.emplace_back(line, std::move(*known));
    if (rankings.size() == kMost) break;
  }
  return rankings;
}

}  // namespace torch_cudnn_ext
