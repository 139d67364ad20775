// Checks of csrc/core and csrc/problems in a program that links these two folders and PyTorch's CPU
// libraries only: no operator, backend, cuDNN, CUDA or Python. The families' operators and backends
// are absent, so one family has an operator and a backend of this file. Reads problems of every
// family from standard input, one canonical text a line. Prints one line for each check that fails.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/base/lru_cache.h"
#include "core/base/thread_state.h"
#include "core/capability.h"
#include "core/caution.h"
#include "core/errata.h"
#include "core/library_versions.h"
#include "core/operator.h"
#include "core/policy/levels.h"
#include "core/policy/policy_text.h"
#include "core/select/decide.h"
#include "core/select/execute.h"
#include "core/select/hints.h"
#include "core/tune/tuning_table.h"
#include "core/writer.h"
#include "problems/field_forms.h"
#include "problems/rnn_layout.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext {
namespace {

int failures = 0;

void check(bool holds, const char* text, int line, const std::string& detail = "") {
  if (holds) return;
  ++failures;
  std::printf("core_test.cpp:%d: %s%s%s\n", line, text, detail.empty() ? "" : ": ", detail.c_str());
}
#define EXPECT(condition) check(condition, #condition, __LINE__)
#define EXPECT_OF(detail, condition) check(condition, #condition, __LINE__, detail)

// The message of the ValueError or other error that a function throws; empty if it throws none.
std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// --- core/base

void check_dims() {
  Dims dims{2, 3};
  dims.push_back(4);
  EXPECT(dims.size() == 3 && dims[2] == 4 && dims.text() == "2,3,4");
  EXPECT(dims == Dims(c10::IntArrayRef({2, 3, 4})) && dims != Dims(3, 2));
  EXPECT(c10::IntArrayRef(dims).equals({2, 3, 4}));
  EXPECT(Dims().empty() && Dims(2, 7) == Dims({7, 7}));
  EXPECT(contains(error_of([] { Dims(kMaxDims + 1, 1); }), "at most 8 dimensions"));
}

void check_tensor_specs() {
  Dims sizes{2, 3, 4, 5};
  EXPECT(contiguous_strides(sizes) == Dims({60, 20, 5, 1}));
  EXPECT(channels_last_strides(sizes) == Dims({60, 1, 15, 3}));
  EXPECT(channels_last_strides({2, 3}) == Dims({3, 1}));
  TensorSpec plain{c10::kHalf, sizes, contiguous_strides(sizes)};
  TensorSpec last{c10::kHalf, sizes, channels_last_strides(sizes)};
  EXPECT(plain.numel() == 120 && plain.nbytes() == 240 && !(plain == last));
  EXPECT(is_channels_last(last) && !is_channels_last(plain) && is_packed(last) && is_packed(plain));
  TensorSpec gaps{c10::kHalf, sizes, {120, 40, 10, 2}};
  EXPECT(!is_packed(gaps) && plain.extent() == 120 && gaps.extent() == 239);
  EXPECT(is_one_pixel({2, 3, 1, 1}) && !is_one_pixel({2, 3, 1, 2}));
  EXPECT(compute_dtype(c10::kHalf) == c10::kFloat && compute_dtype(c10::kDouble) == c10::kDouble);
  EXPECT(dtype_text(c10::kBFloat16) == "bf16" && dtype_text(c10::kLong) == "Long");
  EXPECT(error_of([&] { check_sizes("op", "x", plain, 4, 4); }).empty());
  EXPECT(contains(error_of([&] { check_sizes("op", "x", plain, 1, 3); }),
                  "op: x has sizes [2,3,4,5], wanted 1 to 3 dimensions"));
  EXPECT(contains(error_of([] { check_alignment("op", 3, c10::kHalf); }), "align is 3"));
  EXPECT(contains(error_of([] { check_alignment("op", 2, c10::kFloat); }), "an element of f32"));
}

void check_canonical_strides() {
  TensorSpec plain{c10::kFloat, {2, 3, 4, 5}, {60, 20, 5, 1}};
  TensorSpec one_pixel{c10::kFloat, {8, 3, 1, 1}, {3, 1, 77, 99}};
  canonicalise_strides({&one_pixel});
  EXPECT(one_pixel.strides == Dims({3, 1, 1, 1}));
  // A tensor that has both layouts follows the ones that are channels-last only.
  TensorSpec last{c10::kFloat, {2, 3, 4, 5}, {60, 1, 15, 3}};
  canonicalise_strides({&last, &one_pixel});
  EXPECT(one_pixel.strides == channels_last_strides(one_pixel.sizes));
  canonicalise_strides({&plain, &one_pixel});
  EXPECT(one_pixel.strides == contiguous_strides(one_pixel.sizes));
  TensorSpec neither{c10::kFloat, {2, 1, 4, 5}, {400, 7, 40, 2}};
  canonicalise_strides({&neither});
  EXPECT(neither.strides == Dims({400, 160, 40, 2}));
}

void check_texts() {
  EXPECT(glob_matches("*[64,?,3,3]*", "f16[64,8,3,3]:nhwc") && !glob_matches("a*b", "abc"));
  EXPECT(glob_matches("**", "") && !glob_matches("?", ""));
  EXPECT(glob_can_match("f16[6*", "f16[#]:nhwc") && !glob_can_match("f16[x*", "f16[#]:nhwc"));
  EXPECT(in_lower_case("WinoGrad") == "winograd");
  EXPECT(nearest_words("autotun", {"heuristic", "autotune"}) ==
         std::vector<std::string>{"autotune"});
  EXPECT(nearest_words("zzzz", {"heuristic", "autotune"}).empty());
  EXPECT(wanted_words("x", {"one", "two"}, "README") == "wanted one of one, two");
  EXPECT(contains(error_of([] { check_length("text", std::string(11, 'a'), 10); }), "got 11"));
  EXPECT(enum_value(kBooleans, "flag", "true") &&
         enum_text(kPasses, Pass::bwd) == std::string("bwd"));
  EXPECT(contains(error_of([] { enum_value(kBooleans, "flag", "yes"); }), "flag is 'yes', wanted"));
  for (const auto& name : kRoles) EXPECT(role_from_text(role_text(name.value)) == name.value);
}

void check_lru_cache() {
  LruCache<std::string, int, std::hash<std::string>> cache(2);
  cache.insert("a", 1);
  cache.insert("b", 2);
  EXPECT(*cache.find("a") == 1);
  cache.insert("c", 3);  // evicts b, whose last use is the oldest
  EXPECT(cache.find("b") == nullptr && *cache.find("a") == 1 && *cache.find("c") == 3);
  EXPECT(*cache.insert("c", 4) == 4 && cache.size() == 2 && cache.capacity() == 2);
  EXPECT(cache.hits == 3 && cache.misses == 1);
  cache.clear();
  EXPECT(cache.size() == 0 && cache.find("a") == nullptr);
}

struct Note7 : ThreadState<Note7> {
  static constexpr const char* kKey = "torch_cudnn_ext_core_test";
  int value = 7;
};

void check_thread_state() {
  EXPECT(Note7::here() == nullptr);
  Note7::set(std::make_shared<Note7>());
  EXPECT(Note7::here() != nullptr && Note7::here()->value == 7);
  bool elsewhere = true;
  std::thread([&] { elsewhere = Note7::here() != nullptr; }).join();
  EXPECT(!elsewhere);
}

// --- problems

// The problems of standard input.
const std::vector<std::string>& problem_texts() {
  static const auto* texts = [] {
    auto* lines = new std::vector<std::string>();
    for (std::string line; std::getline(std::cin, line);) lines->push_back(line);
    return lines;
  }();
  return *texts;
}

Key key_of(const Problem& problem) {
  Key key;
  append_key(key, problem);
  key.finish();
  return key;
}

void check_problem_texts() {
  std::set<size_t> families;
  for (const std::string& text : problem_texts()) {
    Problem problem = parse_problem(text);
    families.insert(problem.index());
    EXPECT_OF(problem_text(problem), problem_text(problem) == text);
    EXPECT_OF(text, key_of(parse_problem(text)) == key_of(problem));
    std::string op = op_of(problem);
    EXPECT_OF(text, op == c10::str(family_of(problem), "_", pass_of(problem)));
    auto fields = problem_fields(problem);
    auto forms = field_forms(op);
    std::vector<std::string> names = field_names(op);
    EXPECT_OF(op, fields.size() == names.size() && forms.size() == names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_OF(op, fields[i].first == names[i] && forms[i].first == names[i]);
      bool fits = false;
      for (const std::string& form : forms[i].second) {
        fits = fits || glob_can_match(fields[i].second, form);
      }
      EXPECT_OF(c10::str(op, " ", names[i], "=", fields[i].second), fits);
    }
  }
  EXPECT(families.size() == std::variant_size_v<Problem>);
}

void check_problem_errors() {
  auto error = [](const char* text) { return error_of([&] { parse_problem(text); }); };
  EXPECT(contains(error(""), "it is empty"));
  EXPECT(contains(error("conf_fwd x=f32[1]:nchw"), "starts with 'conf_fwd', wanted one of"));
  EXPECT(contains(error("softmax_fwd"), "wanted 'x=' at the end"));
  EXPECT(contains(error("softmax_fwd x"), "is not of the form key=value"));
  EXPECT(contains(error("softmax_fwd x=f32[2,3,4]:nchw lg=true"),
                  "'lg' is unknown (the nearest: log)"));
  EXPECT(contains(error("softmax_fwd x=f32[2,3,4]:nchw align=4 log=true"), "out of order"));
  EXPECT(contains(error("softmax_fwd x=f33[2,3,4]:nchw"), "x is 'f33', wanted one of f64"));
  EXPECT(contains(error("softmax_fwd x=f32[2,3,4]:s(1,2)"), "3 sizes but 2 strides"));
  EXPECT(contains(error("dropout_fwd x=f32[8]:nchw p=much"), "holds 'much', wanted a number"));
  EXPECT(contains(error("conv_fwd x=f32[2,4,9,9]:nchw w=f32[4,4,3,3]:nchw pad=1,1,1"),
                  "pad has 3 values, wanted one or 2"));
  EXPECT(contains(error("conv_fwd x=f32[2,4,2,2]:nchw w=f32[4,4,3,3]:nchw"), "is larger than"));
}

void check_problem_keys() {
  auto hash = [](const Key& key) { return key.hash(); };
  std::unordered_set<Key, decltype(hash)> keys(0, hash);
  for (const std::string& text : problem_texts()) {
    EXPECT_OF(text, keys.insert(key_of(parse_problem(text))).second);
  }
  const std::string base = "conv_fwd x=f32[2,4,1,9]:nchw w=f32[4,4,1,3]:nchw";
  Key key = key_of(parse_problem(base));
  for (const char* other :
       {"conv_fwd x=f32[2,4,1,9]:s(36,9,123,1) w=f32[4,4,1,3]:nchw # a remark",
        "conv_fwd x=f32[2,4,1,9]:nchw w=f32[4,4,1,3]:nchw pad=0,0 stride=1 groups=1 compute=f32"}) {
    EXPECT_OF(other, key_of(parse_problem(other)) == key);
    EXPECT_OF(other, key_of(parse_problem(other)).hash() == key.hash());
  }
  for (const char* more : {" pad=0,1", " stride=2", " dilation=2", " compute=f64", " align=4",
                           " mode=conv", " bias=f32", " act=relu", " accumulate=add"}) {
    EXPECT_OF(more, !(key_of(parse_problem(base + more)) == key));
  }
}

void check_tensor_steps() {
  auto p = std::get<ConvolutionProblem>(
      parse_problem("conv_fwd x=f32[1,2,4]:nchw w=f32[3,2,2]:nchw mode=conv bias=f32 act=relu"));
  at::Tensor w = at::randn({3, 2, 2});
  EXPECT(flip_for_mode(p, w).equal(w.flip({2})));
  EXPECT(result_role(ConvolutionPass::bwd_filter) == Role::w && p.result() == p.y);
  EXPECT(p.output_sizes() == Dims({1, 3, 3}));
  Bindings bindings;
  bindings[Role::bias] = at::full({3}, -2);
  at::Tensor result = at::full({1, 3, 3}, 3);
  add_epilogue(p, result, bindings);
  EXPECT(result.equal(at::full({1, 3, 3}, 1)));
  auto r =
      std::get<ReduceProblem>(parse_problem("reduce_fwd x=f32[2,3]:nchw first_reduced=true "
                                            "kind=add"));
  at::Tensor x = at::randn({2, 3});
  EXPECT(reduced_rows(r, x).equal(x.t()));
}

void check_rnn_layout() {
  auto p = std::get<RnnProblem>(parse_problem("rnn_fwd cell=gru x=f32[5,3,4]:nchw hidden=6"));
  std::vector<RnnParameter> parameters = rnn_parameters(p);
  int64_t count = 18 * 4 + 18 * 6 + 2 * 18;
  EXPECT(parameters.size() == 4 && rnn_w(p).sizes == Dims({count}));
  at::Tensor w = at::randn({count});
  EXPECT(rnn_flatten(parameters, rnn_views(parameters, w)).is_alias_of(w));
}

// --- core

void check_algorithms() {
  for (const char* text : {"aten:default", "legacy:winograd_nonfused/math=fma", "cpu:im2col",
                           "graph:eng67/k2=1/k13=0"}) {
    EXPECT_OF(text, parse_algorithm(text).text() == text);
  }
  EXPECT(parse_algorithm("graph:eng067/k13=0/k2=01").text() == "graph:eng67/k2=1/k13=0");
  EXPECT(parse_algorithm("aten:default").is_baseline() &&
         kBaseline == parse_algorithm("aten:default"));
  EXPECT(*kBaseline.with("math", "fma").option("math") == "fma");
  auto error = [](const char* text) { return error_of([&] { parse_algorithm(text); }); };
  EXPECT(contains(error("default"), "has no backend"));
  EXPECT(contains(error("atem:default"), "names the backend 'atem', wanted one of graph, legacy"));
  EXPECT(contains(error("cpu:a/b=1/b=2"), "sets 'b' twice"));
  std::vector<LegacyName> names{{0, "CUDNN_SOFTMAX_FAST", "fast", "quick"}};
  for (const char* text : {"0", "CUDNN_SOFTMAX_FAST", "fast", "quick", "legacy:fast"}) {
    EXPECT_OF(text, resolve_algorithm(text, "softmax_fwd", names).text() == "legacy:fast");
  }
  EXPECT(contains(error_of([&] { resolve_algorithm("slow", "softmax_fwd", names); }),
                  "is not one of softmax_fwd"));
}

void check_devices_and_writers() {
  EXPECT(Device{}.text() == "cpu" && parse_device("cuda:1").index == 1);
  EXPECT(runtime_of(Device{}).total_memory_bytes(Device{}) > 0);
  add_target("none", "{\"totalGlobalMem\":1024}");
  Device target = parse_device("target:none");
  EXPECT(target.is_target() && runtime_of(target).total_memory_bytes(target) == 1024);
  EXPECT(contains(error_of([&] { target.torch_device(); }), "is a target"));
  EXPECT(contains(error_of([] { runtime_of(parse_device("cuda:0")); }), "has no run time"));

  at::Tensor writer = make_writer(writer_number("fwd=toy:exact"), at::randn({2}));
  EXPECT(policy_of_writer("op", writer) == "fwd=toy:exact" && writer.numel() == 0);
  EXPECT(!policy_of_writer("op", make_writer(0, writer)));
  EXPECT(
      contains(error_of([&] { policy_of_writer("op", at::randn({2})); }), "op: writer has sizes"));
}

void check_notes() {
  Notes notes{Note::tf32, Note::fft};
  EXPECT(notes.has(Note::fft) && !notes.has(Note::fused));
  EXPECT((notes.texts() == std::vector<std::string>{"tf32", "fft"}));
  EXPECT(notes_from_texts(notes.texts()).texts() == notes.texts());
}

void check_errata() {
  register_library(Library::pytorch, [] { return int64_t{21100}; });
  EXPECT(library_version(Library::pytorch) == 21100 && library_version(Library::cudnn) == 0);
  EXPECT(version_text(91900) == "9.19" && version_text(92801) == "9.28.1");

  Erratum row = erratum<SoftmaxProblem>("toy-log", [](const SoftmaxProblem& p) { return p.log; })
                    .of("toy", {"exact"})
                    .on(Place::cpu)
                    .unsupported("it is wrong")
                    .seen(21100, "seen")
                    .not_in(20900)
                    .fixed_in(21200);
  row.library = Library::pytorch;
  row.architectures = {90};
  EXPECT(is_on(row, 21000, 90) && is_on(row, 21199, 0) && !is_on(row, 21100, 80));
  EXPECT(!is_on(row, 20900, 90) && !is_on(row, 21200, 90));
  row.architectures.clear();
  register_errata({row});

  Algorithm exact = parse_algorithm("toy:exact");
  Problem plain = parse_problem("softmax_fwd x=f32[4,50,1]:nchw log=false");
  Problem log = parse_problem("softmax_fwd x=f32[4,50,1]:nchw log=true");
  EXPECT(!unsupported_by_erratum(plain, exact, {}, Device{}));
  EXPECT(!unsupported_by_erratum(log, exact, {}, kAnyGpu));
  auto found = unsupported_by_erratum(log, exact, {}, Device{});
  EXPECT(found && found->reason == "PyTorch 2.11: it is wrong (erratum toy-log)");
  lift_errata({"toy-log"});
  EXPECT(!unsupported_by_erratum(log, exact, {}, Device{}));
  lift_errata({});
  override_library_version(Library::pytorch, 21150);
  found = unsupported_by_erratum(log, exact, {}, Device{});
  EXPECT(found && contains(found->reason, "seen in 2.11 and not shown to be fixed"));
  override_library_version(Library::pytorch, 0);
}

void check_caution_and_hints() {
  Device cuda{Device::Kind::cuda, 1};
  EXPECT(capability_of(Device{}) == 0 && capability_of(cuda) == 0);
  register_capability([](int index) { return 90 + index; });
  EXPECT(capability_of(cuda) == 91);
  add_target("old", "{\"deviceVer\":700}");
  EXPECT(capability_of(parse_device("target:old")) == 70);

  std::vector<std::string> told;
  set_caution_sink([&](const std::string& text) { told.push_back(text); });
  give_caution_once(cuda);  // nobody has anything to say
  set_caution([](const Device& device) {
    return device.index == 0 ? std::string() : "of " + device.text();
  });
  for (const Device& device : {Device{}, Device{Device::Kind::cuda, 0}, cuda, cuda}) {
    give_caution_once(device);
  }
  EXPECT((told == std::vector<std::string>{"of cuda:1"}));
  set_caution_sink([](const std::string&) {});

  Problem problem = parse_problem("softmax_fwd x=f32[4,50,1]:nchw");
  EXPECT(hints_for(problem, cuda).empty());
  set_hints([](const Problem&, const Device&) { return std::vector<std::string>{"toy:exact"}; });
  EXPECT((hints_for(problem, cuda) == std::vector<std::string>{"toy:exact"}));
  set_hints(nullptr);
}

// The operator and the backend of this file's family.

constexpr const char* kToyProblem = "softmax_fwd x=f32[4,50,1]:nchw log=false";

class ToyOperator : public OperatorOf<SoftmaxProblem> {
 public:
  std::vector<SlotSpec> slots(const SoftmaxProblem& p) const override {
    return {{Role::x, p.x, false}, {Role::y, p.x, true}};
  }
  Cost cost(const SoftmaxProblem& p) const override {
    return {5.0 * p.x.numel(), bytes_of(slots(p)), static_cast<double>(p.x.sizes[1])};
  }
  Bindings reference(const SoftmaxProblem&, const Bindings& bindings) const override {
    Bindings out;
    out[Role::y] = at::softmax(bindings[Role::x].to(at::kDouble), 1);
    return out;
  }
  double tolerance(const SoftmaxProblem&, const Notes&) const override { return 1e-5; }
  std::vector<std::string> heuristic_order(const SoftmaxProblem&) const override { return {"toy"}; }
};
const RegisterOperator<ToyOperator> toy_operator;

std::vector<Candidate> toy_candidates(const SoftmaxProblem&, const Device&) {
  std::vector<Candidate> list;
  for (const char* name : {"unsupported", "exact", "wrong"}) {
    list.push_back({{"toy", name, {}}, "list"});
  }
  return list;
}

BuildResult build_toy(const SoftmaxProblem& p, const Algorithm& algorithm, const Device&) {
  if (algorithm.name == "unsupported") return Unsupported{"toy supports nothing"};
  double factor = algorithm.name == "wrong" ? 0.5 : 1;
  bool nondeterministic = algorithm.name == "wrong";
  Notes notes;
  if (nondeterministic) notes.add(Note::nondeterministic);
  return std::make_shared<FunctionPlan>(algorithm, notes, 0, [=](Bindings& b) {
    give(b, Role::y, p.x, at::softmax(b[Role::x], 1).mul(factor));
  });
}
const RegisterBackendOperator<SoftmaxProblem> toy_backend("toy", toy_candidates, build_toy);

void check_registries() {
  EXPECT(std::string(operator_of(parse_problem(kToyProblem)).family()) == "softmax");
  EXPECT(find_pass("softmax_bwd").second == "bwd");
  EXPECT(contains(error_of([] { find_operator("conv"); }),
                  "operator family is 'conv', wanted softmax"));
  EXPECT(backend_names().back() == "toy" && find_backend("toy")->find("softmax") != nullptr);
  EXPECT(find_backend("toy")->find("conv") == nullptr && find_backend("other") == nullptr);
  Problem problem = parse_problem(kToyProblem);
  EXPECT(std::holds_alternative<Unsupported>(build(problem, kBaseline, Device{})));
  EXPECT(parse_algorithm("toy:exact").text() == "toy:exact");
}

void check_policies() {
  for (const char* text : {"fwd=toy:exact", "bwd=autotune;fwd=heuristic", "max_workspace=64MiB",
                           "deterministic;on_unsupported=warn;backends=aten,toy"}) {
    std::string canonical = parse_policy(text, "softmax").text("softmax");
    EXPECT_OF(canonical, parse_policy(canonical, "softmax").text("softmax") == canonical);
  }
  auto text_of = [](const Policy& policy) { return policy.text("softmax"); };
  auto parsed = [](const char* text) { return parse_policy(text, "softmax"); };
  EXPECT(text_of(parsed("toy:exact")) == "fwd=toy:exact;bwd=toy:exact");
  Policy merged = merge(parsed("fwd=autotune;max_workspace=2MiB"),
                        parsed("fwd=heuristic;bwd=toy:exact;max_workspace=1MiB;deterministic"));
  EXPECT_OF(text_of(merged),
            text_of(merged) == "fwd=autotune;bwd=toy:exact;max_workspace=1MiB;deterministic");
  EXPECT(contains(error_of([&] { parsed("fwdd=autotune"); }), "'fwdd' is unknown"));
  EXPECT(contains(error_of([&] { parsed("prefer=speed"); }), "prefer is 'speed', wanted one of"));
}

void check_tuning_table() {
  tuning_table::clear();
  EXPECT(!tuning_table::find({"p", "d", "c"}));
  Measurement first;
  first.algorithm = parse_algorithm("toy:exact");
  first.status = status_from_text("ok");
  tuning_table::insert({"p", "d", "c", {first}});
  auto found = tuning_table::find({"p", "d", "c"});
  EXPECT(found && found->is_of_key() && found->measurements.size() == 1 &&
         found->measurements.front().algorithm == first.algorithm);
  EXPECT(!tuning_table::find({"p", "d", "other"}) && tuning_table::entries().size() == 1);
  EXPECT(status_text(Measurement::Status::needs_driver) == std::string("needs a driver"));
  tuning_table::clear();
  EXPECT(tuning_table::entries().empty());

  int asked = 0, added = 0;
  TuningStore store;
  store.find = [&](const TableKey& key) -> std::optional<KnownRanking> {
    ++asked;
    if (key.problem == "kept") return KnownRanking{{first}, "", "", ""};
    if (key.problem == "elsewhere") return KnownRanking{{first}, key.device + "2", "", ""};
    return std::nullopt;
  };
  store.add = [&](const TableEntry& entry) -> std::optional<KnownRanking> {
    added += entry.problem == "measured";
    if (entry.problem == "agreed") return KnownRanking{{first, first}, "", "", ""};
    if (entry.problem == "other") return KnownRanking{{first}, "d2", "", ""};
    return std::nullopt;
  };
  tuning_table::set_store(store);
  EXPECT(tuning_table::find({"kept", "d", "c"})->measurements.size() == 1 && asked == 1);
  EXPECT(tuning_table::find({"kept", "d", "c"}) && asked == 1);  // the table has it now
  for (int i = 0; i < 2; ++i) EXPECT(tuning_table::find({"elsewhere", "d", "c"})->device == "d2");
  EXPECT(!tuning_table::find({"p", "d", "c"}) && asked == 4 && tuning_table::entries().size() == 1);
  tuning_table::insert_measured({"measured", "d", "c", {first}});
  tuning_table::insert({"imported", "d", "c", {first}});
  EXPECT(added == 1 && tuning_table::find({"measured", "d", "c"}) && asked == 4);
  int64_t version = tuning_table::version();
  EXPECT(tuning_table::insert_measured({"agreed", "d", "c", {first}}).has_value());
  EXPECT(tuning_table::find({"agreed", "d", "c"})->measurements.size() == 2);
  EXPECT(tuning_table::version() == version + 1);
  EXPECT(tuning_table::insert_measured({"other", "d", "c", {first}}).has_value());
  EXPECT(!tuning_table::find({"other", "d", "c"}) && tuning_table::version() == version + 1);
  tuning_table::set_store({});
  tuning_table::clear();
}

void check_decisions() {
  Problem problem = parse_problem(kToyProblem);
  Device cpu;
  const DecisionRecord& heuristic = decide(problem, std::nullopt, cpu);
  EXPECT_OF(heuristic.why, heuristic.algorithm == "toy:exact" && heuristic.why == "heuristic");
  EXPECT(heuristic.problem == kToyProblem && heuristic.workspace_bytes == 0);
  const DecisionRecord& pinned = decide(problem, "toy:wrong", cpu);
  EXPECT(pinned.algorithm == "toy:wrong" && pinned.why == "pinned");
  std::string error = error_of([&] { decide(problem, "toy:unsupported", cpu); });
  EXPECT_OF(error,
            contains(error, "the pinned algorithm toy:unsupported cannot run: toy supports"));
  EXPECT_OF(error, contains(error, "would work: toy:exact, toy:wrong"));
  error = error_of([&] { decide(problem, "toy:wrong;deterministic", cpu); });
  EXPECT_OF(error, contains(error, "cannot run: excluded"));
  EXPECT(decide(problem, "fwd=toy:unsupported;on_unsupported=fallback", cpu).algorithm ==
         "toy:exact");

  const DecisionRecord& tuned = decide(problem, "autotune", cpu);
  EXPECT_OF(tuned.why, tuned.algorithm == "toy:exact" && tuned.why == "tuned");
  auto entries = tuning_table::entries();
  EXPECT(entries.size() == 1 && entries[0].measurements.size() == 3);
  std::set<std::string> statuses;
  for (const Measurement& m : entries[0].measurements) statuses.insert(status_text(m.status));
  EXPECT((statuses == std::set<std::string>{"ok", "rejected", "unsupported"}));
  plan_cache_clear();
  EXPECT(decide(problem, "autotune", cpu).why == "cached");

  Bindings bindings;
  bindings[Role::x] = at::randn({4, 50, 1});
  const ResolvedPolicy& policy = resolve_policy("softmax", std::nullopt);
  execute(problem, policy, cpu, bindings);
  EXPECT(bindings[Role::y].allclose(at::softmax(bindings[Role::x], 1)));
  int64_t hits = plan_cache_info().hits;
  execute(problem, policy, cpu, bindings);
  EXPECT(plan_cache_info().hits == hits + 1);
  EXPECT(last_decision("softmax_fwd")->algorithm == "toy:exact");
}

int run() {
  check_dims();
  check_tensor_specs();
  check_canonical_strides();
  check_texts();
  check_lru_cache();
  check_thread_state();
  check_problem_texts();
  check_problem_errors();
  check_problem_keys();
  check_tensor_steps();
  check_rnn_layout();
  check_algorithms();
  check_devices_and_writers();
  check_notes();
  check_errata();
  check_caution_and_hints();
  check_registries();
  check_policies();
  check_tuning_table();
  check_decisions();
  if (failures == 0) std::printf("all checks hold\n");
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace torch_cudnn_ext

int main() { return torch_cudnn_ext::run(); }
