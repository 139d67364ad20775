#include "core/backend.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <memory>

#include "core/errors.h"
#include "core/local_errata.h"
#include "core/operator.h"

namespace torch_cudnn_ext {

namespace {

// In the order of backend_names(). Filled while libraries load, read-only afterwards.
std::vector<std::unique_ptr<Backend>>& backends() {
  static auto* list = [] {
    auto* made = new std::vector<std::unique_ptr<Backend>>();
    for (const std::string& name : backend_names()) {
      made->push_back(std::make_unique<Backend>(name));
    }
    return made;
  }();
  return *list;
}

}  // namespace

void Backend::add(const std::string& family, BackendOperator op) {
  operators_.emplace_back(family, std::move(op));
}

const BackendOperator* Backend::find(const std::string& family) const {
  for (const auto& [name, op] : operators_) {
    if (name == family) return &op;
  }
  return nullptr;
}

Backend& backend(const std::string& name) {
  for (auto& item : backends()) {
    if (item->name == name) return *item;
  }
  add_backend_name(name);
  backends().push_back(std::make_unique<Backend>(name));
  return *backends().back();
}

const Backend* find_backend(const std::string& name) {
  for (const auto& item : backends()) {
    if (item->name == name) return item.get();
  }
  return nullptr;
}

static const BackendOperator* backend_operator(const Problem& problem, const Algorithm& algorithm) {
  const Backend* found = find_backend(algorithm.backend);
  return found == nullptr ? nullptr : found->find(family_of(problem));
}

std::optional<Notes> notes_before_building(const Problem& problem, const Algorithm& algorithm,
                                           const Device& device) {
  const BackendOperator* op = backend_operator(problem, algorithm);
  if (op == nullptr || !op->notes) return std::nullopt;
  try {
    return op->notes(problem, algorithm, device);
  } catch (const c10::Error&) {
    return std::nullopt;  // building says why
  }
}

BuildResult build(const Problem& problem, const Algorithm& algorithm, const Device& device) {
  const BackendOperator* op = backend_operator(problem, algorithm);
  if (op == nullptr) {
    return Unsupported{c10::str("backend ", algorithm.backend, " has no ", op_of(problem))};
  }
  if (auto erratum = unsupported_by_local_erratum(problem, algorithm, device)) return *erratum;
  const DeviceRuntime& runtime = runtime_of(device);
  try {
    BuildResult result = Unsupported{};
    runtime.call_freely([&] { result = op->build(problem, algorithm, device); });
    return result;
  } catch (const c10::Error& error) {
    constexpr bool kDriver = false, kTransient = true;
    // Numbers of bytes would make another reason at each call.
    if (is_out_of_memory(error)) {
      return Unsupported{"out of memory while building", kDriver, kTransient};
    }
    // A failure while the stream is captured says nothing about other calls.
    return Unsupported{c10::str("failed to build: ", error.what_without_backtrace()), kDriver,
                       runtime.is_capturing(device)};
  }
}

std::vector<std::string> families_with(const std::string& algorithm) {
  std::vector<std::string> families;
  Algorithm wanted = parse_algorithm(algorithm);
  if (wanted.backend == "graph") return families;
  for (const Operator* op : all_operators()) {
    if (!passes_with(*op, wanted).empty()) families.emplace_back(op->family());
  }
  return families;
}

std::vector<std::string> passes_with(const Operator& op, const Algorithm& algorithm) {
  const Backend* backend = find_backend(algorithm.backend);
  const BackendOperator* entry = backend == nullptr ? nullptr : backend->find(op.family());
  if (entry == nullptr) return {};
  std::vector<std::string> passes = op.passes(), examples = op.description().examples;
  auto has = [&](const std::string& pass, const std::string& example) {
    std::string fields = example.substr(example.find(' '));
    Problem problem = parse_problem(c10::str(op.family(), "_", pass, fields));
    std::vector<Candidate> list = entry->candidates(problem, Device{});
    return std::any_of(list.begin(), list.end(), [&](const Candidate& candidate) {
      return candidate.algorithm.name == algorithm.name;
    });
  };
  auto lacks = [&](const std::string& pass) {
    return std::none_of(examples.begin(), examples.end(),
                        [&](const std::string& example) { return has(pass, example); });
  };
  passes.erase(std::remove_if(passes.begin(), passes.end(), lacks), passes.end());
  return passes;
}

}  // namespace torch_cudnn_ext
