#include "core/policy/policy.h"

#include <ATen/Context.h>
#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "core/backend.h"
#include "core/base/enum_text.h"
#include "core/base/text.h"
#include "core/base/thread_state.h"
#include "core/operator.h"

namespace torch_cudnn_ext {

namespace {

constexpr EnumName<Prefer> kPrefer[] = {
    {Prefer::time, "time"}, {Prefer::gpu_time, "gpu_time"}, {Prefer::memory, "memory"}};
constexpr EnumName<OnUnsupported> kOnUnsupported[] = {{OnUnsupported::error, "error"},
                                                      {OnUnsupported::warn, "warn"},
                                                      {OnUnsupported::fallback, "fallback"}};
constexpr EnumName<Compute> kCompute[] = {
    {Compute::as_input, "as_input"}, {Compute::as_input_f32, "as_input_f32"},
    {Compute::f16, "f16"},           {Compute::f32, "f32"},
    {Compute::f64, "f64"},           {Compute::f16, "float16"},
    {Compute::f32, "float32"},       {Compute::f64, "float64"}};
// In the order of ComputeByType::kTypes; several words for one type are spelt by its first.
constexpr EnumName<c10::ScalarType> kComputeTypes[] = {
    {c10::ScalarType::Half, "f16"},      {c10::ScalarType::BFloat16, "bf16"},
    {c10::ScalarType::Float, "f32"},     {c10::ScalarType::Double, "f64"},
    {c10::ScalarType::Half, "float16"},  {c10::ScalarType::BFloat16, "bfloat16"},
    {c10::ScalarType::Float, "float32"}, {c10::ScalarType::Double, "float64"}};
constexpr EnumName<Selection::Kind> kChoices[] = {
    {Selection::Kind::heuristic, "heuristic"},
    {Selection::Kind::autotune, "autotune"},
    {Selection::Kind::guess_once, "guess_once"},
    {Selection::Kind::time_once, "time_once"},
    // Keys hold the shape, so "on shape change" is what these always do.
    {Selection::Kind::heuristic, "guess_on_shape_change"},
    {Selection::Kind::autotune, "time_on_shape_change"}};

bool bool_value(std::string_view key, std::optional<std::string_view> text) {
  if (!text) return true;
  std::string word = in_lower_case(*text);
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"false", "no", "off", "0"}) {
    if (word == no) return false;
  }
  TORCH_CHECK_VALUE(false, "policy text: ", key, " is '", *text,
                    "', wanted true or false (also yes, on, 1 and no, off, 0)");
}

// The largest first: of two in which a size is exact, the first one is written.
struct Unit {
  const char* suffix;
  int64_t bytes;
};
constexpr Unit kUnits[] = {
    {"TiB", int64_t{1} << 40}, {"TB", 1000000000000}, {"GiB", int64_t{1} << 30},
    {"GB", 1000000000},        {"MiB", 1 << 20},      {"MB", 1000000},
    {"KiB", 1 << 10},          {"kB", 1000},          {"B", 1}};

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

void read_max_workspace(std::string_view text, Policy& policy) {
  auto number = [&](std::string_view digits) {
    double value = 0;
    digits = without_blanks(digits);
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    bool valid = error == std::errc() && end == digits.data() + digits.size() && digits[0] != '.' &&
                 digits.find_first_not_of("0123456789.") == std::string_view::npos;
    TORCH_CHECK_VALUE(valid, "policy text: max_workspace is '", text,
                      "', wanted bytes, e.g. 0, 1048576, 64MiB or 64MB, or a share of memory, e.g. "
                      "20%");
    return value;
  };
  if (ends_with(text, "%")) {
    double percent = number(text.substr(0, text.size() - 1));
    TORCH_CHECK_VALUE(percent <= 100, "policy text: max_workspace is '", text,
                      "', wanted at most 100%");
    policy.max_workspace_percent = percent;
    return;
  }
  std::string lower = in_lower_case(text);
  bool has_half_a_unit =
      !lower.empty() && std::string_view("kmgt").find(lower.back()) != std::string_view::npos;
  TORCH_CHECK_VALUE(!has_half_a_unit, "policy text: max_workspace is '", text,
                    "', wanted a unit of powers of 1000, e.g. 64MB, or of 1024, e.g. 64MiB");
  std::string_view digits = text;
  Unit unit{"", 1};
  for (const Unit& known : kUnits) {
    if (!ends_with(lower, in_lower_case(known.suffix))) continue;
    unit = known;
    digits.remove_suffix(std::string_view(known.suffix).size());
    break;
  }
  double bytes = number(digits) * static_cast<double>(unit.bytes);
  TORCH_CHECK_VALUE(bytes <= 0x1p63, "policy text: max_workspace is '", text,
                    "', wanted less than 2^63 bytes");
  policy.max_workspace_bytes = bytes < 0x1p63 ? static_cast<int64_t>(bytes) : INT64_MAX;
  policy.max_workspace_unit = unit.suffix;
}

// "f32" for all types, or "f16:f32,bf16:f32" for those that it names.
ComputeByType read_compute(std::string_view text) {
  ComputeByType out;
  if (text.find(':') == std::string_view::npos) {
    out.values.fill(enum_value(kCompute, "policy text: compute", text));
    return out;
  }
  for (bool more = true; more;) {
    size_t comma = text.find(',');
    std::string_view item = without_blanks(text.substr(0, comma));
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    size_t colon = item.find(':');
    TORCH_CHECK_VALUE(colon != std::string_view::npos, "policy text: compute names '", item,
                      "' among types of data, wanted type:type, such as f16:f32");
    std::string_view type = without_blanks(item.substr(0, colon));
    std::string_view word = without_blanks(item.substr(colon + 1));
    c10::ScalarType data =
        enum_value(kComputeTypes, "policy text: the type of data in compute", type);
    Compute value = enum_value(kCompute, c10::str("policy text: compute of ", type), word);
    for (size_t i = 0; i < out.values.size(); ++i) {
      if (ComputeByType::kTypes[i] != data) continue;
      TORCH_CHECK_VALUE(!out.values[i], "policy text: compute names ", type,
                        " twice, wanted each type once");
      out.values[i] = value;
    }
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

// In the unit in which they were given, or else in the largest, in which they are exact.
std::string bytes_text(int64_t bytes, std::string_view given_in) {
  for (const Unit& unit : kUnits) {
    if (given_in == unit.suffix && bytes % unit.bytes == 0) {
      return c10::str(bytes / unit.bytes, unit.suffix);
    }
  }
  for (const Unit& unit : kUnits) {
    if (unit.bytes > 1 && bytes != 0 && bytes % unit.bytes == 0) {
      return c10::str(bytes / unit.bytes, unit.suffix);
    }
  }
  return std::to_string(bytes);
}

std::vector<std::string> read_backends(std::string_view text) {
  std::vector<std::string> names;
  auto add = [&](const std::string& name) {
    for (const std::string& known : names) {
      if (known == name) return;
    }
    names.push_back(name);
  };
  while (true) {
    size_t comma = text.find(',');
    std::string name(without_blanks(text.substr(0, comma)));
    if (name == "cudnn") {
      add("graph");
      add("legacy");
    } else {
      TORCH_CHECK_VALUE(find_backend(name) != nullptr, "policy text: backends names '", name,
                        "', wanted cudnn or some of ", c10::Join(", ", backend_names()));
      add(name);
    }
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  // One spelling whatever the order of writing.
  std::vector<std::string> ordered;
  for (const std::string& name : backend_names()) {
    for (const std::string& wanted : names) {
      if (wanted == name) ordered.push_back(name);
    }
  }
  return ordered;
}

// The operators of which a text names an algorithm of the classic API.
std::string ops_that_fit(std::string_view text) {
  std::string list;
  for (const Operator* op : all_operators()) {
    for (const std::string& pass : op->passes()) {
      std::string op_name = c10::str(op->family(), "_", pass);
      try {
        resolve_algorithm(text, op_name, op->legacy_names(pass));
        list += (list.empty() ? "" : ", ") + op_name;
      } catch (const c10::ValueError&) {
        continue;  // this one it does not fit
      }
    }
  }
  return list;
}

// All that a choice of a pass may be, in the spelling of `text`: with a backend or without.
std::vector<std::string> choices_of(std::string_view text, const Operator& op,
                                    const std::string& pass) {
  std::vector<std::string> known;
  size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    for (const auto& word : kChoices) known.emplace_back(word.text);
    for (const BooleanField& field : kBooleanFields) known.emplace_back(field.name);
  }
  std::string prefix = colon == std::string_view::npos ? "" : "legacy:";
  for (const LegacyName& name : op.legacy_names(pass)) {
    known.push_back(prefix + name.name);
    if (name.theano_name != nullptr) known.push_back(prefix + name.theano_name);
    known.push_back(prefix + name.enumerator);
  }
  return known;
}

std::string nearest_text(std::string_view text, const std::vector<std::string>& known) {
  std::vector<std::string> near = nearest_words(text.substr(0, text.find('/')), known);
  return near.empty() ? "" : c10::str("; the nearest: ", c10::Join(", ", near));
}

// nullopt: not pinned.
std::optional<Selection> read_choice(std::string_view text, const Operator& op,
                                     const std::string& pass) {
  if (text.empty() || text == "-1") return std::nullopt;
  for (const auto& word : kChoices) {
    if (text == word.text) return Selection{word.value, {}};
  }
  std::string op_name = c10::str(op.family(), "_", pass);
  try {
    return Selection{Selection::Kind::pinned,
                     resolve_algorithm(text, op_name, op.legacy_names(pass))};
  } catch (const c10::ValueError& error) {
    std::string fits = ops_that_fit(text);
    std::string hint = fits.empty() ? nearest_text(text, choices_of(text, op, pass))
                                    : c10::str("; it is one of ", fits);
    TORCH_CHECK_VALUE(false, error.what_without_backtrace(), hint, "; all: ", kInTexts);
  }
}

void set_choice(Policy& policy, const std::string& op_name, std::optional<Selection> choice) {
  if (choice) policy.choices[op_name] = *std::move(choice);
}

// What a policy's text may say: fields, words for all passes, and of passes one by one.
std::vector<std::string> fields_of_policies(const std::string& family) {
  std::vector<std::string> known{"max_workspace", "prefer", "backends", "on_unsupported",
                                 "compute"};
  for (const BooleanField& field : kBooleanFields) known.emplace_back(field.name);
  for (const std::string& pass : find_operator(family).passes()) known.push_back(pass);
  for (const Operator* op : all_operators()) {
    known.emplace_back(op->family());
    for (const std::string& pass : op->passes()) known.push_back(c10::str(op->family(), "_", pass));
  }
  return known;
}

// Of what is no algorithm of any pass, and no other word.
[[noreturn]] void refuse_word(std::string_view word, const Operator& op) {
  std::vector<std::string> known = fields_of_policies(op.family());
  for (const std::string& pass : op.passes()) {
    for (std::string& choice : choices_of(word, op, pass)) known.push_back(std::move(choice));
  }
  std::string fits = ops_that_fit(word);
  TORCH_CHECK_VALUE(false, "policy text: '", word, "' is no choice for all passes of ", op.family(),
                    ", nor a field",
                    fits.empty() ? nearest_text(word, known) : c10::str("; it is one of ", fits),
                    "; all: ", kInPolicies, " and ", kInTexts);
}

void read_word_for_all_passes(Policy& policy, std::string_view word, const std::string& family) {
  const Operator& op = find_operator(family);
  bool integer = word.find_first_not_of("0123456789") == std::string_view::npos;
  TORCH_CHECK_VALUE(!integer, "policy text: '", word,
                    "' is an integer for all passes, but integers mean different algorithms in "
                    "different passes; write fwd=",
                    word);
  std::vector<std::string> fitting, others;
  std::string reason;
  for (const std::string& pass : op.passes()) {
    try {
      set_choice(policy, c10::str(family, "_", pass), read_choice(word, op, pass));
      fitting.push_back(pass);
    } catch (const c10::ValueError& error) {
      others.push_back(pass);
      if (reason.empty()) reason = error.what_without_backtrace();
    }
  }
  if (others.empty()) return;
  bool is_algorithm = word.find(':') != std::string_view::npos;
  if (fitting.empty() && !is_algorithm) refuse_word(word, op);
  TORCH_CHECK_VALUE(!fitting.empty(), "policy text: '", word, "' is no choice for all passes of ",
                    family, ": ", reason);
  TORCH_CHECK_VALUE(false, "policy text: '", word, "' is meant for all passes but does not fit ",
                    c10::Join(", ", others), ", wanted ", fitting[0], "=", word,
                    ", or an algorithm of every pass; all: ", kInTexts);
}

// "fwd" of the given family, "conv_fwd" of any, or "conv" for all its passes. False when the key is
// none of these.
bool read_pass(Policy& policy, std::string_view key, std::string_view value,
               const std::string& family) {
  for (const Operator* op : all_operators()) {
    if (key == op->family()) {
      read_word_for_all_passes(policy, value, op->family());
      return true;
    }
    for (const std::string& pass : op->passes()) {
      std::string op_name = c10::str(op->family(), "_", pass);
      if (key != op_name && !(key == pass && op->family() == family)) continue;
      set_choice(policy, op_name, read_choice(value, *op, pass));
      return true;
    }
  }
  return false;
}

// `pass` is the one that a single word is for; all where it is empty.
void read_field(Policy& policy, std::string_view key, std::optional<std::string_view> value,
                const std::string& family, const std::string& pass) {
  auto must = [&] {
    TORCH_CHECK_VALUE(value, "policy text: '", key, "' needs a value: ", key, "=...");
    return *value;
  };
  if (key == "max_workspace") return read_max_workspace(must(), policy);
  if (key == "prefer")
    return void(policy.prefer = enum_value(kPrefer, "policy text: prefer", must()));
  if (key == "on_unsupported") {
    return void(policy.on_unsupported =
                    enum_value(kOnUnsupported, "policy text: on_unsupported", must()));
  }
  if (key == "backends") return void(policy.backends = read_backends(must()));
  if (key == "compute") return void(policy.compute = read_compute(must()));
  for (const BooleanField& field : kBooleanFields) {
    if (key == field.name) return void(policy.*field.value = bool_value(key, value));
  }
  if (value && read_pass(policy, key, *value, family)) return;
  if (!value && pass.empty()) return read_word_for_all_passes(policy, key, family);
  if (!value) {
    return set_choice(policy, c10::str(family, "_", pass),
                      read_choice(key, find_operator(family), pass));
  }
  TORCH_CHECK_VALUE(false, "policy text: the key '", key, "' is unknown, ",
                    wanted_words(key, fields_of_policies(family), kInPolicies));
}

template <class T>
void take_if_unset(std::optional<T>& strong, const std::optional<T>& weak) {
  if (!strong) strong = weak;
}

template <class T>
void take_smaller(std::optional<T>& strong, const std::optional<T>& weak) {
  if (weak && (!strong || *weak < *strong)) strong = weak;
}

// The smaller cap, with the unit of the one that is taken.
void take_smaller_cap(Policy& strong, const Policy& weak) {
  const std::optional<int64_t> before = strong.max_workspace_bytes;
  take_smaller(strong.max_workspace_bytes, weak.max_workspace_bytes);
  if (strong.max_workspace_bytes != before) strong.max_workspace_unit = weak.max_workspace_unit;
}

std::mutex policy_mutex;                     // guards the policies of the process, and interned()
std::atomic<uint64_t> policy_generation{1};  // grows with every change of them
std::atomic<uint64_t> decision_counter{1};
std::atomic<bool> verbose_on{false};

Policy& process_policy() {
  static auto* policy = new Policy();
  return *policy;
}
Policy& policy_of_enable() {
  static auto* policy = new Policy();
  return *policy;
}

auto& interned() {
  static auto* map = new std::map<std::string, std::unique_ptr<ResolvedPolicy>>();
  return *map;
}

// The flags that this thread opened, outermost first. The serial tells the caches apart.
struct ThreadPolicies {
  struct Level {
    uint64_t id;
    Policy policy;
  };
  std::vector<Level> levels;
  uint64_t serial = 0;

  Policy merged() const {
    Policy all;
    for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
      all = apply_level(all, level->policy);
    }
    return all;
  }
};
thread_local ThreadPolicies thread_policies;

// All flags that hold on the thread that made it.
struct HandedFlags : ThreadState<HandedFlags> {
  static inline const std::string kKey = "torch_cudnn_ext.flags";
  std::thread::id made_by = std::this_thread::get_id();
  Policy policy;
  uint64_t serial = 0;
  std::shared_ptr<const HandedFlags> received;  // what that thread was handed itself
};
std::atomic<int64_t> levels_open{0};  // of all threads: without any, nobody looks for them

// What another thread handed to this one; nullptr for nothing.
std::shared_ptr<const HandedFlags> received_flags() {
  if (levels_open.load(std::memory_order_relaxed) == 0) return nullptr;
  auto flags = HandedFlags::here();
  if (flags == nullptr) return nullptr;
  return flags->made_by == std::this_thread::get_id() ? flags->received : flags;
}

void hand_flags_on() {
  static std::atomic<uint64_t> last_serial{0};
  auto flags = std::make_shared<HandedFlags>();
  flags->received = received_flags();
  flags->policy = thread_policies.merged();
  if (flags->received) flags->policy = apply_level(flags->policy, flags->received->policy);
  flags->serial = ++last_serial;
  HandedFlags::set(std::move(flags));
}

Policy policy_of_switches(Switches switches) {
  Policy policy;
  if (switches.has(Switches::kDeterministic)) policy.deterministic = true;
  policy.allow_tf32 = switches.has(Switches::kAllowTf32);
  if (switches.has(Switches::kBenchmark)) policy.benchmark = true;
  return policy;
}

// In a saved policy: what was asked for at the call stands before it, all levels in one behind it.
// ASCII's unit separator, which no policy text contains. At its end the record separator says that
// the determinism in it spares the baseline.
constexpr char kBelow = '\x1f', kSpared = '\x1e';

// Of one family's choices, or of all.
void refuse_once(const Policy& policy, std::string_view family = {}) {
  std::string prefix = family.empty() ? "" : c10::str(family, "_");
  for (const auto& [op, choice] : policy.choices) {
    if (op.compare(0, prefix.size(), prefix) != 0) continue;
    bool once =
        choice.kind == Selection::Kind::guess_once || choice.kind == Selection::Kind::time_once;
    TORCH_CHECK_VALUE(!once, "policy: ", op, " is ", choice.text(),
                      ", which freezes the first choice in a module's state; an operator has none. "
                      "Use it on a torch_cudnn_ext.nn module, or use heuristic or autotune");
  }
}

const ResolvedPolicy& intern(std::string_view family, ResolvedPolicy made) {
  refuse_once(made.policy, family);
  std::string name(family);
  made.text = made.policy.text(name);
  made.saved = saved_with(made, {}, family);
  std::string key = c10::str(family, "|", static_cast<int>(made.switches.bits), "|", made.saved,
                             "|", made.enabled.text(name));
  std::lock_guard<std::mutex> lock(policy_mutex);
  auto& entry = interned()[key];
  if (entry == nullptr) {
    made.id = static_cast<int64_t>(interned().size());
    entry = std::make_unique<ResolvedPolicy>(std::move(made));
  }
  return *entry;
}

// Of a field's key: a family; a pass, of whatever family; an operator.
int narrowness(std::string_view key) {
  for (const Operator* op : all_operators()) {
    std::string family = op->family();
    if (key == family) return 0;
    if (key.size() > family.size() && key.substr(0, family.size()) == family &&
        key[family.size()] == '_') {
      return 2;
    }
  }
  return 1;
}

// What chooses for more weighs less than what chooses for fewer, wherever they stand. Of a
// field that stands twice the last one holds, though all are read: caps in bytes and in percent are
// two.
Policy parse(std::string_view text, const std::string& family, const std::string& pass) {
  check_length("policy text", text);
  std::vector<std::string_view> words, fields;
  bool more = !text.empty();
  while (more) {
    size_t semicolon = text.find(';');
    std::string_view item = text.substr(0, semicolon);
    more = semicolon != std::string_view::npos;
    if (more) text.remove_prefix(semicolon + 1);
    item = without_blanks(item);
    if (item.empty()) continue;
    TORCH_CHECK_VALUE(item.find_first_of("\r\n") == std::string_view::npos, "policy text: '", item,
                      "' goes on over a line break, wanted it on one line, and ';' between fields");
    // An algorithm as the one word for all passes holds '=' in its options.
    size_t equals = item.find('=');
    bool is_algorithm = item.substr(0, equals).find(':') != std::string_view::npos ||
                        item.substr(0, equals).find('/') != std::string_view::npos;
    bool is_switch = std::any_of(std::begin(kBooleanFields), std::end(kBooleanFields),
                                 [&](const BooleanField& field) { return item == field.name; });
    bool is_word = (equals == std::string_view::npos && !is_switch) || is_algorithm;
    (is_word ? words : fields).push_back(item);
  }
  Policy policy;
  for (std::string_view word : words) read_field(policy, word, std::nullopt, family, pass);
  auto key_of = [](std::string_view field) {
    return without_blanks(field.substr(0, field.find('=')));
  };
  std::stable_sort(fields.begin(), fields.end(), [&](std::string_view a, std::string_view b) {
    return narrowness(key_of(a)) < narrowness(key_of(b));
  });
  std::map<std::pair<std::string_view, bool>, size_t> last;  // by key, and whether in percent
  auto name_of = [&](std::string_view field) {
    return std::make_pair(key_of(field), ends_with(field, "%"));
  };
  for (size_t i = 0; i < fields.size(); ++i) last[name_of(fields[i])] = i;
  for (auto field = fields.begin(); field != fields.end(); ++field) {
    std::string_view key = key_of(*field);
    std::optional<std::string_view> value;
    size_t equals = field->find('=');
    if (equals != std::string_view::npos) value = without_blanks(field->substr(equals + 1));
    bool stands_again = last[name_of(*field)] > static_cast<size_t>(field - fields.begin());
    Policy overruled;
    read_field(stands_again ? overruled : policy, key, value, family, pass);
  }
  return policy;
}

// Those of which the strictest of all levels holds.
Policy constraints_that_add_up(const Policy& level) {
  Policy kept;
  kept.max_workspace_bytes = level.max_workspace_bytes;
  kept.max_workspace_unit = level.max_workspace_unit;
  kept.max_workspace_percent = level.max_workspace_percent;
  kept.deterministic = level.deterministic;
  return kept;
}

const ResolvedPolicy& resolve_anew(const std::string& family,
                                   std::optional<std::string_view> argument, Switches switches,
                                   bool alone = false) {
  ResolvedPolicy made{};
  made.switches = switches;
  std::string_view text = argument.value_or("");
  size_t below = text.find(kBelow);
  made.argument = parse_policy(text.substr(0, below), family);
  made.policy = made.argument;
  // A saved text holds all that was said at its time: what is said now can only be stricter.
  bool saved = below != std::string_view::npos;
  auto add = [&](const Policy& level) {
    made.policy = apply_level(made.policy, saved ? constraints_that_add_up(level) : level);
  };
  bool spared_then = saved && text.back() == kSpared;
  if (spared_then) text.remove_suffix(1);
  Policy then = saved ? parse(text.substr(below + 1), family, "") : Policy{};
  if (spared_then) then.deterministic.reset();
  made.policy = merge(made.policy, then);
  if (!alone) {
    Policy process;
    {
      std::lock_guard<std::mutex> lock(policy_mutex);
      made.enabled = policy_of_enable();
      process = process_policy();
    }
    add(made.enabled);
    add(thread_policies.merged());
    if (auto received = received_flags()) add(received->policy);
    add(process);
  }
  bool demanded = made.policy.deterministic.value_or(false) || switches.has(Switches::kStrict);
  add(policy_of_switches(switches));
  if (spared_then) made.policy.deterministic = true;
  made.baseline_may_be_nondeterministic = made.policy.deterministic.value_or(false) && !demanded;
  return intern(family, std::move(made));
}

// Finding the resolved policy of a call again: a hash and a comparison, no lock.
struct ResolveCache {
  struct Entry {
    std::string family;
    bool has_argument = false;
    std::string argument;
    uint8_t switches = 0;
    const ResolvedPolicy* resolved = nullptr;
  };
  static constexpr size_t kCapacity = 1024;  // then all is forgotten
  std::unordered_map<size_t, Entry> entries;
  uint64_t generation = 0, serial = 0, received_serial = 0;
};
thread_local ResolveCache resolve_cache;

}  // namespace

std::string Selection::text() const {
  return kind == Kind::pinned ? algorithm.text() : enum_text(kChoices, kind);
}

std::string Policy::text(const std::string& family) const {
  std::string out;
  auto add = [&](const std::string& item) { out += (out.empty() ? "" : ";") + item; };
  for (const Operator* op : all_operators()) {
    for (const std::string& pass : op->passes()) {
      std::string op_name = c10::str(op->family(), "_", pass);
      auto found = choices.find(op_name);
      if (found == choices.end()) continue;
      add(c10::str(op->family() == family ? pass : op_name, "=", found->second.text()));
    }
  }
  if (max_workspace_bytes) {
    add("max_workspace=" + bytes_text(*max_workspace_bytes, max_workspace_unit));
  }
  if (max_workspace_percent) {
    // All digits, and no exponent: reading it again gives the same.
    char digits[400];
    auto end = std::to_chars(digits, digits + sizeof(digits), *max_workspace_percent,
                             std::chars_format::fixed);
    add(c10::str("max_workspace=", std::string_view(digits, end.ptr - digits), "%"));
  }
  if (prefer) add(c10::str("prefer=", enum_text(kPrefer, *prefer)));
  for (const BooleanField& field : kBooleanFields) {
    const std::optional<bool>& value = this->*field.value;
    if (value) add(*value ? field.name : c10::str(field.name, "=false"));
  }
  if (backends) {
    bool cudnn = *backends == std::vector<std::string>{"graph", "legacy"};
    add("backends=" + (cudnn ? std::string("cudnn") : c10::Join(",", *backends)));
  }
  if (on_unsupported) add(c10::str("on_unsupported=", enum_text(kOnUnsupported, *on_unsupported)));
  if (compute.is_set()) add("compute=" + compute_text(compute));
  return out;
}

std::string Policy::constraints_text(const Problem& problem) const {
  Policy kept = *this;
  kept.choices.clear();
  kept.benchmark.reset();
  kept.fastest.reset();
  kept.on_unsupported.reset();
  kept.compute = {};  // the problem holds it
  kept.max_workspace_unit = {};
  // Spelled in one way: what is off by default is left out.
  for (const BooleanField& field : kBooleanFields) {
    if (kept.*field.value == false) (kept.*field.value).reset();
  }
  if (kept.prefer == Prefer::time) kept.prefer.reset();
  std::vector<std::string> all = backend_names();
  bool admits_all = std::all_of(all.begin(), all.end(),
                                [&](const auto& name) { return kept.admits_backend(name); });
  if (admits_all) kept.backends.reset();
  // TF32 is a matter of products of float32 data alone.
  const Operator& op = operator_of(problem);
  bool has_products = op.float32_op().has_value();
  if (!has_products || op.slots(problem)[0].spec.dtype != c10::ScalarType::Float) {
    kept.allow_tf32.reset();
  }
  return kept.text(family_of(problem));
}

std::optional<int64_t> Policy::workspace_cap(const Device& device) const {
  std::optional<int64_t> cap = max_workspace_bytes;
  if (max_workspace_percent) {
    auto total = static_cast<double>(runtime_of(device).total_memory_bytes(device));
    take_smaller(cap, {static_cast<int64_t>(total * *max_workspace_percent / 100)});
  }
  return cap;
}

bool Policy::admits_backend(const std::string& name) const {
  if (!backends) return true;
  for (const std::string& admitted : *backends) {
    if (admitted == name) return true;
  }
  return false;
}

namespace {

// What a level that says `fastest` says thereby. A cap of its own is not meant; all levels in one
// text hold those of the others.
Policy with_fastest(Policy policy) {
  if (policy.fastest.value_or(false)) {
    policy.max_workspace_bytes.reset();
    policy.max_workspace_percent.reset();
    take_if_unset(policy.benchmark, {true});
    take_if_unset(policy.prefer, {Prefer::time});
  }
  return policy;
}

}  // namespace

Policy parse_policy(std::string_view text, const std::string& family) {
  return with_fastest(parse(text, family, ""));
}

Policy parse_policy_of(const std::string& op, std::string_view text) {
  auto [family, pass] = find_pass(op);
  return with_fastest(parse(text, family->family(), pass));
}

Policy merge(const Policy& stronger, const Policy& weaker) {
  Policy out = stronger;
  for (const auto& [op, choice] : weaker.choices) out.choices.emplace(op, choice);
  take_smaller_cap(out, weaker);
  take_smaller(out.max_workspace_percent, weaker.max_workspace_percent);
  if (weaker.deterministic.value_or(false)) out.deterministic = true;
  for (const BooleanField& field : kBooleanFields) {
    take_if_unset(out.*field.value, weaker.*field.value);
  }
  take_if_unset(out.prefer, weaker.prefer);
  take_if_unset(out.on_unsupported, weaker.on_unsupported);
  take_if_unset(out.backends, weaker.backends);
  for (size_t i = 0; i < out.compute.values.size(); ++i) {
    take_if_unset(out.compute.values[i], weaker.compute.values[i]);
  }
  return out;
}

Policy apply_level(const Policy& stronger, Policy weaker) {
  if (stronger.fastest.value_or(false)) weaker.choices.clear();
  bool taken_back = stronger.fastest == false && weaker.fastest.value_or(false);
  if (taken_back) {
    weaker.benchmark.reset();
    if (weaker.prefer == Prefer::time) weaker.prefer.reset();
  }
  return merge(stronger, weaker);
}

bool is_tf32(at::Float32Op op) {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) ==
         at::Float32Precision::TF32;
}

Switches read_switches(std::string_view family) {
  const at::Context& context = at::globalContext();
  // The per-operator switch: reading the old allow_tf32 can raise once the new one is set.
  std::optional<at::Float32Op> op = find_operator(family).float32_op();
  Switches switches;
  auto set = [&](uint8_t bit, bool on) {
    if (on) switches.bits |= bit;
  };
  set(Switches::kDeterministic, context.deterministicCuDNN() || context.deterministicAlgorithms());
  set(Switches::kAllowTf32, op && is_tf32(*op));
  set(Switches::kTf32Products, is_tf32(at::Float32Op::MATMUL));
  bool strict = context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly();
  set(Switches::kStrict, strict);
  set(Switches::kBenchmark, context.benchmarkCuDNN());
  set(Switches::kCudnnEnabled, context.userEnabledCuDNN());
  return switches;
}

const ResolvedPolicy& resolve_policy(std::string_view family,
                                     std::optional<std::string_view> argument) {
  Switches switches = read_switches(family);
  ResolveCache& cache = resolve_cache;
  uint64_t now = policy_generation.load(std::memory_order_relaxed);
  auto received = received_flags();
  uint64_t received_serial = received == nullptr ? 0 : received->serial;
  if (cache.generation != now || cache.serial != thread_policies.serial ||
      cache.received_serial != received_serial || cache.entries.size() >= ResolveCache::kCapacity) {
    cache.entries.clear();
    cache.generation = now;
    cache.serial = thread_policies.serial;
    cache.received_serial = received_serial;
  }
  auto hash = c10::get_hash(family, argument.value_or(""), switches.bits);
  ResolveCache::Entry& entry = cache.entries[hash];
  bool known = entry.resolved != nullptr && entry.family == family &&
               entry.switches == switches.bits && entry.has_argument == argument.has_value() &&
               (!argument || entry.argument == *argument);
  if (!known) {
    const ResolvedPolicy& resolved = resolve_anew(std::string(family), argument, switches);
    entry = {std::string(family), argument.has_value(), std::string(argument.value_or("")),
             switches.bits, &resolved};
  }
  return *entry.resolved;
}

const ResolvedPolicy& resolve_alone(const std::string& family, std::string_view argument) {
  constexpr bool kAlone = true;
  return resolve_anew(family, argument, read_switches(family), kAlone);
}

std::string saved_with(const ResolvedPolicy& resolved, const Policy& more,
                       std::string_view family) {
  std::string name(family);
  return c10::str(merge(more, resolved.argument).text(name), kBelow, resolved.policy.text(name),
                  resolved.baseline_may_be_nondeterministic ? std::string(1, kSpared) : "");
}

const ResolvedPolicy& add_level(const ResolvedPolicy& resolved, const Policy& rules,
                                std::string_view family) {
  ResolvedPolicy made = resolved;
  made.policy = apply_level(apply_level(resolved.argument, rules), resolved.policy);
  if (rules.deterministic.value_or(false)) made.baseline_may_be_nondeterministic = false;
  return intern(family, std::move(made));
}

void set_enabled_policy(Policy policy) {
  refuse_once(policy);
  {
    std::lock_guard<std::mutex> lock(policy_mutex);
    policy_of_enable() = std::move(policy);
  }
  policy_generation.fetch_add(1, std::memory_order_relaxed);
}

Policy enabled_policy() {
  std::lock_guard<std::mutex> lock(policy_mutex);
  return policy_of_enable();
}

void set_process_policy(Policy policy) {
  refuse_once(policy);
  {
    std::lock_guard<std::mutex> lock(policy_mutex);
    process_policy() = std::move(policy);
  }
  policy_generation.fetch_add(1, std::memory_order_relaxed);
}

uint64_t push_thread_policy(const Policy& policy) {
  static std::atomic<uint64_t> last_id{0};
  refuse_once(policy);
  uint64_t id = ++last_id;
  thread_policies.levels.push_back({id, policy});
  ++thread_policies.serial;
  ++levels_open;
  hand_flags_on();
  return id;
}

void pop_thread_policy(uint64_t id) {
  auto& levels = thread_policies.levels;
  auto found = std::find_if(levels.begin(), levels.end(),
                            [id](const ThreadPolicies::Level& level) { return level.id == id; });
  TORCH_CHECK(found != levels.end(),
              "flags: a block is closed that was opened on another thread, where its knobs hold "
              "until it is closed there");
  levels.erase(found);
  ++thread_policies.serial;
  hand_flags_on();
  --levels_open;
}

uint64_t decision_generation() { return decision_counter.load(std::memory_order_relaxed); }
void next_decision_generation() { decision_counter.fetch_add(1, std::memory_order_relaxed); }
bool verbose() { return verbose_on.load(std::memory_order_relaxed); }
void set_verbose(bool on) {
  bool was_on = verbose_on.exchange(on, std::memory_order_relaxed);
  if (on && !was_on) next_decision_generation();
}

}  // namespace torch_cudnn_ext
