#include "core/policy/policy_text.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "core/backend.h"
#include "core/base/enum_text.h"
#include "core/base/text.h"
#include "core/operator.h"
#include "core/policy/policy_words.h"

namespace torch_cudnn_ext {

namespace {

constexpr EnumName<bool> kBooleans[] = {{true, "true"}, {true, "yes"}, {true, "on"},
                                        {true, "1"},    {false, "no"}, {false, "false"},
                                        {false, "off"}, {false, "0"}};
constexpr EnumName<ReplayMode> kReplayModes[] = {
    {ReplayMode::off, "off"}, {ReplayMode::graphs, "graphs"}, {ReplayMode::kernels, "kernels"}};
constexpr EnumName<Prefer> kPrefer[] = {{Prefer::time, "time"},
                                        {Prefer::gpu_time, "gpu_time"},
                                        {Prefer::memory, "memory"},
                                        {Prefer::energy, "energy"}};
constexpr EnumName<OnUnsupported> kOnUnsupported[] = {{OnUnsupported::error, "error"},
                                                      {OnUnsupported::warn, "warn"},
                                                      {OnUnsupported::fallback, "fallback"}};
constexpr EnumName<OnMiss> kOnMiss[] = {{OnMiss::autotune, "autotune"},
                                        {OnMiss::heuristic, "heuristic"},
                                        {OnMiss::nearest, "nearest"},
                                        {OnMiss::record, "record"},
                                        {OnMiss::error, "error"}};
constexpr EnumName<Compute> kCompute[] = {
    {Compute::as_input, "as_input"}, {Compute::as_input_f32, "as_input_f32"},
    {Compute::f16, "f16"},           {Compute::f32, "f32"},
    {Compute::f64, "f64"},           {Compute::f16, "float16"},
    {Compute::f32, "float32"},       {Compute::f64, "float64"}};
constexpr EnumName<c10::ScalarType> kComputeTypes[] = {
    {c10::ScalarType::Half, "f16"},      {c10::ScalarType::BFloat16, "bf16"},
    {c10::ScalarType::Float, "f32"},     {c10::ScalarType::Double, "f64"},
    {c10::ScalarType::Half, "float16"},  {c10::ScalarType::BFloat16, "bfloat16"},
    {c10::ScalarType::Float, "float32"}, {c10::ScalarType::Double, "float64"}};
// Units of bytes, the largest first: a size is written in the first unit in which it is exact.
constexpr EnumName<int64_t> kUnits[] = {
    {int64_t{1} << 40, "TiB"}, {1000000000000, "TB"}, {int64_t{1} << 30, "GiB"},
    {1000000000, "GB"},        {1 << 20, "MiB"},      {1000000, "MB"},
    {1 << 10, "KiB"},          {1000, "kB"},          {1, "B"}};

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// The parts between separators, without blanks around them.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    size_t end = text.find(separator);
    parts.push_back(without_blanks(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// "key=value", or a key alone.
struct Field {
  std::string_view key;
  std::optional<std::string_view> value;
};
Field split_field(std::string_view text, char separator) {
  size_t end = text.find(separator);
  if (end == std::string_view::npos) return {text, std::nullopt};
  return {without_blanks(text.substr(0, end)), without_blanks(text.substr(end + 1))};
}

// --- the fields' values

bool read_boolean(std::string_view key, std::optional<std::string_view> text) {
  std::string word = in_lower_case(text.value_or("true"));
  for (const auto& known : kBooleans) {
    if (word == known.text) return known.value;
  }
  TORCH_CHECK_VALUE(false, "policy text: ", key, " is '", *text,
                    "', wanted true or false (also yes, on, 1 and no, off, 0)");
}

void read_max_workspace(std::string_view text, Policy& policy) {
  auto check = [&](bool valid, const char* wanted) {
    TORCH_CHECK_VALUE(valid, "policy text: max_workspace is '", text, "', wanted ", wanted);
  };
  auto number = [&](std::string_view digits) {
    double value = 0;
    digits = without_blanks(digits);
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    check(error == std::errc() && end == digits.data() + digits.size() && digits[0] != '.' &&
              digits.find_first_not_of("0123456789.") == std::string_view::npos,
          "bytes, e.g. 0, 1048576, 64MiB or 64MB, or a share of memory, e.g. 20%");
    return value;
  };
  if (ends_with(text, "%")) {
    double percent = number(text.substr(0, text.size() - 1));
    check(percent <= 100, "at most 100%");
    policy.max_workspace_percent = percent;
    return;
  }
  std::string lower = in_lower_case(text);
  bool has_half_a_unit =
      !lower.empty() && std::string_view("kmgt").find(lower.back()) != std::string_view::npos;
  check(!has_half_a_unit, "a unit of powers of 1000, e.g. 64MB, or of 1024, e.g. 64MiB");
  auto unit = std::find_if(std::begin(kUnits), std::end(kUnits), [&](const auto& known) {
    return ends_with(lower, in_lower_case(known.text));
  });
  policy.max_workspace_unit = unit == std::end(kUnits) ? "" : unit->text;
  double bytes = number(text.substr(0, text.size() - policy.max_workspace_unit.size())) *
                 static_cast<double>(unit == std::end(kUnits) ? 1 : unit->value);
  check(bytes <= 0x1p63, "less than 2^63 bytes");
  policy.max_workspace_bytes = bytes < 0x1p63 ? static_cast<int64_t>(bytes) : INT64_MAX;
}

// In the unit in which the size was given if it is exact in it, else in the largest such unit.
std::string bytes_text(int64_t bytes, std::string_view given_in) {
  for (bool any : {false, true}) {
    for (const auto& unit : kUnits) {
      bool fits = any ? unit.value > 1 && bytes != 0 : given_in == unit.text;
      if (fits && bytes % unit.value == 0) return c10::str(bytes / unit.value, unit.text);
    }
  }
  return std::to_string(bytes);
}

// "f32" for all types, or "f16:f32,bf16:f32" for those that it names.
ComputeByType read_compute(std::string_view text) {
  ComputeByType out;
  if (text.find(':') == std::string_view::npos) {
    out.values.fill(enum_value(kCompute, "policy text: compute", text));
    return out;
  }
  for (std::string_view item : split(text, ',')) {
    Field field = split_field(item, ':');
    TORCH_CHECK_VALUE(field.value, "policy text: compute names '", item,
                      "' among types of data, wanted type:type, such as f16:f32");
    c10::ScalarType data =
        enum_value(kComputeTypes, "policy text: the type of data in compute", field.key);
    auto type = std::find(ComputeByType::kTypes.begin(), ComputeByType::kTypes.end(), data);
    auto& value = out.values[type - ComputeByType::kTypes.begin()];
    Compute read =
        enum_value(kCompute, c10::str("policy text: compute of ", field.key), *field.value);
    TORCH_CHECK_VALUE(!value, "policy text: compute names ", field.key,
                      " twice, wanted each type once");
    value = read;
  }
  return out;
}

std::string compute_text(const ComputeByType& compute) {
  const auto& values = compute.values;
  bool same = std::all_of(values.begin(), values.end(),
                          [&](const auto& value) { return value && *value == *values[0]; });
  if (same) return enum_text(kCompute, *values[0]);
  std::string out;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i]) continue;
    out += c10::str(out.empty() ? "" : ",", enum_text(kComputeTypes, ComputeByType::kTypes[i]), ":",
                    enum_text(kCompute, *values[i]));
  }
  return out;
}

// The backends that a list names, in the order in which all are registered.
std::vector<std::string> read_backends(std::string_view text) {
  const std::vector<std::string>& known = backend_names();
  std::vector<std::string> names, ordered;
  for (std::string_view item : split(text, ',')) {
    std::string name(item);
    if (name == "cudnn") {
      names.insert(names.end(), {"graph", "legacy"});
      continue;
    }
    TORCH_CHECK_VALUE(find_backend(name) != nullptr, "policy text: backends names '", name,
                      "', wanted cudnn or some of ", c10::Join(", ", known));
    names.push_back(name);
  }
  std::copy_if(known.begin(), known.end(), std::back_inserter(ordered), [&](const auto& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  });
  return ordered;
}

// --- fields

// Reads what a policy selects for a pass. A text that means "not pinned" sets nothing.
void read_selection(Policy& policy, std::string_view text, const Operator& op,
                    const std::string& pass) {
  if (text.empty() || text == "-1") return;
  std::string name = c10::str(op.family(), "_", pass);
  for (const auto& word : kSelections) {
    if (text == word.text) return void(policy.selections[name] = {word.value, {}});
  }
  try {
    policy.selections[name] = {Selection::Kind::pinned,
                               resolve_algorithm(text, name, op.legacy_names(pass))};
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, error.what_without_backtrace(),
                      suggestion(text, selections_of(text, op, pass)), "; all: ", kInPolicies);
  }
}

// A word is for every pass that has it. If no pass is known to have it, it is for every pass that
// can spell it: only a GPU knows the engines of the graph API, and a policy may fall back.
void read_word_for_all_passes(Policy& policy, std::string_view word, const Operator& op) {
  bool integer = word.find_first_not_of("0123456789") == std::string_view::npos;
  TORCH_CHECK_VALUE(!integer, "policy text: '", word,
                    "' is an integer for all passes, but integers mean different algorithms in "
                    "different passes; write fwd=",
                    word);
  Policy read;
  std::string reason;
  for (const std::string& pass : op.passes()) {
    try {
      read_selection(read, word, op, pass);
    } catch (const c10::ValueError& error) {
      if (reason.empty()) reason = error.what_without_backtrace();
    }
  }
  if (read.selections.empty() && !reason.empty()) {
    // The word may be meant for a field.
    TORCH_CHECK_VALUE(word.find(':') == std::string_view::npos, "policy text: '", word,
                      "' fits no pass of ", op.family(), ": ", reason);
    std::vector<std::string> known = known_keys(op.family());
    for (const std::string& pass : op.passes()) {
      for (std::string& each : selections_of(word, op, pass)) known.push_back(std::move(each));
    }
    const char* separated =
        word.find(',') == std::string_view::npos ? "" : "; fields are separated by ;";
    TORCH_CHECK_VALUE(false, "policy text: '", word, "' is neither an algorithm of ", op.family(),
                      " nor a field", separated, suggestion(word, known), "; all: ", kInPolicies);
  }
  auto is_spelled_only = [&](const auto& selected) {
    const Selection& selection = selected.second;
    if (selection.kind != Selection::Kind::pinned) return false;
    std::vector<std::string> passes = passes_with(op, selection.algorithm);
    std::string pass = selected.first.substr(std::string_view(op.family()).size() + 1);
    return !passes.empty() && std::find(passes.begin(), passes.end(), pass) == passes.end();
  };
  for (const auto& selected : read.selections) {
    if (!is_spelled_only(selected)) policy.selections[selected.first] = selected.second;
  }
}

// Reads "fwd" of the given family, "conv_fwd" of any, or "conv" for all its passes. False if the
// key is none of these.
bool read_pass(Policy& policy, std::string_view key, std::string_view value,
               const std::string& family) {
  for (const Operator* op : all_operators()) {
    if (key != op->family()) continue;
    read_word_for_all_passes(policy, value, *op);
    return true;
  }
  for (const NamedPass& each : all_passes()) {
    if (key != each.name && !(key == each.pass && each.op->family() == family)) continue;
    read_selection(policy, value, *each.op, each.pass);
    return true;
  }
  return false;
}

// Reads one field. A single word is for `pass`, or for all passes if that is empty.
void read_field(Policy& policy, const Field& field, const std::string& family,
                const std::string& pass) {
  const auto& [key, value] = field;
  bool has_value = value.has_value();
  for (const char* name : kValueKeys) {
    TORCH_CHECK_VALUE(has_value || key != name, "policy text: '", name, "' needs a value: ", name,
                      "=...");
  }
  if (key == "max_workspace") return read_max_workspace(*value, policy);
  if (key == "backends") return void(policy.backends = read_backends(*value));
  if (key == "compute") return void(policy.compute = read_compute(*value));
  auto read = [&key = key, &value = value](const auto& names) {
    return enum_value(names, c10::str("policy text: ", key), *value);
  };
  if (key == "prefer") return void(policy.prefer = read(kPrefer));
  if (key == "replay") return void(policy.replay = read(kReplayModes));
  if (key == "on_unsupported") return void(policy.on_unsupported = read(kOnUnsupported));
  if (key == "on_miss") return void(policy.on_miss = read(kOnMiss));
  for (const BooleanField& each : kBooleanFields) {
    if (key == each.name) return void(policy.*each.value = read_boolean(key, value));
  }
  if (!has_value && pass.empty()) {
    return read_word_for_all_passes(policy, key, find_operator(family));
  }
  if (!has_value) return read_selection(policy, key, find_operator(family), pass);
  if (read_pass(policy, key, *value, family)) return;
  TORCH_CHECK_VALUE(false, "policy text: the key '", key, "' is unknown, ",
                    wanted_words(key, known_keys(family), kInPolicies));
}

// A field, or a word: an algorithm or its like, which has `=` in its options only.
Field read_item(std::string_view item) {
  TORCH_CHECK_VALUE(item.find_first_of("\r\n") == std::string_view::npos, "policy text: '", item,
                    "' goes on over a line break, wanted it on one line, and ';' between fields");
  Field field = split_field(item, '=');
  bool is_algorithm = field.key.find_first_of(":/") != std::string_view::npos;
  return is_algorithm ? Field{item, std::nullopt} : field;
}

// The rank in which items are read, so that what selects for fewer passes overrides what selects
// for more: words, families, passes of one family and all other fields, operators' passes.
int rank_of(const Field& field) {
  bool is_switch = std::any_of(std::begin(kBooleanFields), std::end(kBooleanFields),
                               [&](const BooleanField& known) { return field.key == known.name; });
  if (!field.value && !is_switch) return 0;
  for (const Operator* op : all_operators()) {
    std::string family = op->family();
    if (field.key == family) return 1;
    if (field.key.substr(0, family.size() + 1) == family + "_") return 3;
  }
  return 2;
}

// Of a field that stands twice the last one holds, though both are read. Caps in bytes and in
// percent are different fields.
Policy parse(std::string_view text, const std::string& family, const std::string& pass) {
  check_length("policy text", text);
  std::vector<std::pair<int, Field>> fields;
  for (std::string_view item : split(text, ';')) {
    if (item.empty()) continue;
    Field field = read_item(item);
    fields.emplace_back(rank_of(field), field);
  }
  std::stable_sort(fields.begin(), fields.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::map<std::pair<std::string_view, bool>, const Field*> last;
  auto name_of = [](const Field& f) {
    return std::make_pair(f.key, ends_with(f.value.value_or(""), "%"));
  };
  for (const auto& [rank, field] : fields) last[name_of(field)] = &field;
  Policy policy, overridden;
  for (const auto& [rank, field] : fields) {
    read_field(last[name_of(field)] == &field ? policy : overridden, field, family, pass);
  }
  return policy;
}

// Applies what a level that says `fastest` implies: it ignores its own cap.
Policy with_fastest(Policy policy) {
  if (policy.fastest.value_or(false)) {
    policy.max_workspace_bytes.reset();
    policy.max_workspace_percent.reset();
    if (!policy.benchmark) policy.benchmark = true;
    if (!policy.prefer) policy.prefer = Prefer::time;
  }
  return policy;
}

constexpr std::string_view kSavedCall = "call{", kSavedAll = "} all{",
                           kSavedFlag = " baseline_may_be_nondeterministic";

}  // namespace

std::string Selection::text() const {
  return kind == Kind::pinned ? algorithm.text() : enum_text(kSelections, kind);
}

std::string Policy::text(const std::string& family) const {
  std::vector<std::string> items;
  for (const NamedPass& each : all_passes()) {
    auto found = selections.find(each.name);
    if (found == selections.end()) continue;
    items.push_back(
        c10::str(each.op->family() == family ? each.pass : each.name, "=", found->second.text()));
  }
  if (max_workspace_bytes) {
    items.push_back("max_workspace=" + bytes_text(*max_workspace_bytes, max_workspace_unit));
  }
  if (max_workspace_percent) {
    // All digits and no exponent, so that the text reads as the same number.
    char digits[400];
    auto end = std::to_chars(digits, digits + sizeof(digits), *max_workspace_percent,
                             std::chars_format::fixed);
    items.push_back(c10::str("max_workspace=", std::string_view(digits, end.ptr - digits), "%"));
  }
  if (prefer) items.push_back(c10::str("prefer=", enum_text(kPrefer, *prefer)));
  if (replay) items.push_back(c10::str("replay=", enum_text(kReplayModes, *replay)));
  for (const BooleanField& field : kBooleanFields) {
    const std::optional<bool>& value = this->*field.value;
    if (value) items.push_back(c10::str(field.name, *value ? "" : "=false"));
  }
  if (backends) {
    bool cudnn = *backends == std::vector<std::string>{"graph", "legacy"};
    items.push_back("backends=" + (cudnn ? "cudnn" : c10::Join(",", *backends)));
  }
  if (on_unsupported) {
    items.push_back(c10::str("on_unsupported=", enum_text(kOnUnsupported, *on_unsupported)));
  }
  if (on_miss) items.push_back(c10::str("on_miss=", enum_text(kOnMiss, *on_miss)));
  if (compute.is_set()) items.push_back("compute=" + compute_text(compute));
  return c10::Join(";", items);
}

Policy parse_policy(std::string_view text, const std::string& family) {
  return with_fastest(parse(text, family, ""));
}

Policy parse_policy_of(const std::string& op, std::string_view text) {
  auto [family, pass] = find_pass(op);
  return with_fastest(parse(text, family->family(), pass));
}

std::string SavedPolicy::text(const std::string& family) const {
  return c10::str(kSavedCall, call.text(family), kSavedAll, all.text(family), "}",
                  baseline_may_be_nondeterministic ? kSavedFlag : "");
}

std::optional<SavedPolicy> parse_saved_policy(std::string_view text, const std::string& family) {
  if (text.substr(0, kSavedCall.size()) != kSavedCall) return std::nullopt;
  SavedPolicy saved;
  saved.baseline_may_be_nondeterministic = ends_with(text, kSavedFlag);
  std::string_view rest = text.substr(kSavedCall.size());
  if (saved.baseline_may_be_nondeterministic) rest.remove_suffix(kSavedFlag.size());
  size_t all = rest.find(kSavedAll);
  TORCH_CHECK_VALUE(all != std::string_view::npos && rest.back() == '}', "policy text: '", text,
                    "' begins as a saved policy, wanted call{...} all{...}");
  rest.remove_suffix(1);
  saved.call = parse_policy(rest.substr(0, all), family);
  saved.all = parse(rest.substr(all + kSavedAll.size()), family, "");
  return saved;
}

}  // namespace torch_cudnn_ext
