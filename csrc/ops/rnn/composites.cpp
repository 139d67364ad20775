// The public operators of recurrent networks, which are composites of the inner one, and PyTorch's
// own, overridden by them. Arguments are those of torch._VF.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/select/recording.h"
#include "ops/known_kernel.h"
#include "ops/rnn/rnn.h"
#include "torch/internals.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext::rnn {
namespace {

constexpr const char* kPackedNames[] = {"rnn_relu_packed", "rnn_tanh_packed", "lstm_packed",
                                        "gru_packed"};  // by cell

// An LSTM takes a list, of a hidden and a cell state or of nothing, and returns both states.
template <RnnCell cell>
constexpr bool kIsLstm = cell == RnnCell::lstm;
template <RnnCell cell>
using Hidden = std::conditional_t<kIsLstm<cell>, TensorList, const OptionalTensor&>;
template <RnnCell cell>
using Outputs = std::conditional_t<kIsLstm<cell>, std::tuple<Tensor, Tensor, Tensor>,
                                   std::tuple<Tensor, Tensor>>;

struct NetworkArgs {
  TensorList params;
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train, bidirectional;

  auto tied() const {
    return std::tie(params, has_biases, num_layers, dropout, train, bidirectional);
  }
};

struct OwnArgs {
  bool skip_input = false, single_bias = false;
  OptionalPolicy policy = std::nullopt;

  auto tied() const { return std::tie(skip_input, single_bias, policy); }
};

template <RnnCell cell>
struct DenseArgs {
  static constexpr const char* kName = kNames[static_cast<int>(cell)];
  using Result = Outputs<cell>;
  const Tensor& input;
  Hidden<cell> hx;
  NetworkArgs network;
  bool batch_first;
  OwnArgs own;

  auto tied() const {
    return std::tuple_cat(std::tie(input, hx), network.tied(), std::tie(batch_first), own.tied());
  }
};

template <RnnCell cell>
struct PackedArgs {
  static constexpr const char* kName = kPackedNames[static_cast<int>(cell)];
  using Result = Outputs<cell>;
  const Tensor& data;
  IntArrayRef batch_sizes;
  Hidden<cell> hx;
  NetworkArgs network;
  OwnArgs own;

  auto tied() const {
    return std::tuple_cat(std::tie(data, batch_sizes, hx), network.tied(), own.tied());
  }
};

struct States {
  OptionalTensor h, c;
};
States states_of(const OptionalTensor& hx) { return {hx, std::nullopt}; }
States states_of(TensorList hx) {
  TORCH_CHECK_VALUE(hx.empty() || hx.size() == 2, "torch_cudnn_ext::lstm: hx holds ", hx.size(),
                    " tensors, wanted a hidden and a cell state, or none");
  if (hx.empty()) return {};
  return {hx[0], hx[1]};
}

template <RnnCell cell>
Outputs<cell> run_network(const Tensor& input, IntArrayRef batch_sizes, const States& states,
                          const NetworkArgs& network, bool batch_first, const OwnArgs& own) {
  double dropout = network.dropout;
  TORCH_CHECK_VALUE(dropout >= 0 && dropout <= 1, "torch_cudnn_ext::rnn: dropout is ", dropout,
                    ", wanted 0 to 1");
  if (!network.train || network.num_layers <= 1) dropout = 0;
  RnnBias bias = !network.has_biases ? RnnBias::none
                 : own.single_bias   ? RnnBias::single
                                     : RnnBias::twice;
  Settings settings{static_cast<int64_t>(cell), static_cast<int64_t>(bias),
                    network.num_layers,         dropout,
                    network.bidirectional,      own.skip_input};
  auto [y, hy, cy, reserve, writer] = call_op(ForwardArgs{
      input, batch_sizes, states.h, states.c, network.params, settings, false, own.policy});
  if (batch_first) y = y.transpose(0, 1);
  if constexpr (kIsLstm<cell>) {
    return {y, hy, cy};
  } else {
    return {y, hy};
  }
}

template <RnnCell cell>
Outputs<cell> run_dense(const DenseArgs<cell>& args) {
  States states = states_of(args.hx);
  TORCH_CHECK_VALUE(args.input.dim() == 3, "torch_cudnn_ext::", args.kName, ": input has sizes ",
                    args.input.sym_sizes(), ", wanted 3 dimensions");
  return run_network<cell>(args.batch_first ? args.input.transpose(0, 1) : args.input, {}, states,
                           args.network, args.batch_first, args.own);
}

bool are_plain(const Tensor& t) { return are_plain_arguments({&t}); }
bool are_plain(const OptionalTensor& t) { return are_plain(or_undefined(t)); }
bool are_plain(TensorList list) {
  return std::all_of(list.begin(), list.end(), [](const Tensor& t) { return are_plain(t); });
}

bool needs_gradient(const Tensor& t) { return t.defined() && t.requires_grad(); }
bool needs_gradient(const OptionalTensor& t) { return needs_gradient(or_undefined(t)); }
bool needs_gradient(TensorList list) {
  return std::any_of(list.begin(), list.end(), [](const Tensor& t) { return needs_gradient(t); });
}

// PyTorch's own networks that draw no random numbers.
template <RnnCell cell>
std::optional<Outputs<cell>> plain_dense(const DenseArgs<cell>& args) {
  const auto& [params, has_biases, layers, dropout, train, bidirectional] = args.network;
  if (args.own.skip_input || args.own.single_bias || (train && dropout > 0)) return std::nullopt;
  auto run = [&](auto& network, const auto& hx) {
    return network(args.input, hx, params, has_biases, layers, 0, train, bidirectional,
                   args.batch_first);
  };
  // States that are left out are zero. The second parameter is the matrix of the hidden state.
  int64_t rows = layers * (bidirectional ? 2 : 1);
  int64_t batch = args.input.size(args.batch_first ? 0 : 1);
  auto zero = [&](int64_t width) { return at::zeros({rows, batch, width}, args.input.options()); };
  using OfState = Outputs<cell>(const Tensor&, const Tensor&, TensorList, bool, int64_t, double,
                                bool, bool, bool);
  if constexpr (kIsLstm<cell>) {
    using OfStates = Outputs<cell>(const Tensor&, TensorList, TensorList, bool, int64_t, double,
                                   bool, bool, bool);
    constexpr int64_t kGates = 4;
    std::vector<Tensor> zeros;
    if (args.hx.empty()) zeros = {zero(params[1].size(1)), zero(params[1].size(0) / kGates)};
    return run(static_cast<OfStates&>(at::lstm), args.hx.empty() ? TensorList(zeros) : args.hx);
  } else {
    Tensor hx = has(args.hx) ? *args.hx : zero(params[1].size(1));
    if constexpr (cell == RnnCell::gru) return run(static_cast<OfState&>(at::gru), hx);
    if constexpr (cell == RnnCell::tanh) return run(static_cast<OfState&>(at::rnn_tanh), hx);
    if constexpr (cell == RnnCell::relu) return run(static_cast<OfState&>(at::rnn_relu), hx);
  }
}

// Apart from run_dense, since a call that trains has another problem.
template <RnnCell cell>
Outputs<cell> train_dense(const DenseArgs<cell>& args) {
  return run_dense<cell>(args);
}

// PyTorch's LSTM may keep its output for the backward. A copy may be changed in place.
template <RnnCell cell>
std::optional<Outputs<cell>> plain_train_dense(const DenseArgs<cell>& args) {
  std::optional<Outputs<cell>> results = plain_dense<cell>(args);
  if (results && kIsLstm<cell>) std::get<0>(*results) = std::get<0>(*results).clone();
  return results;
}

// Where PyTorch's own network is decided for on a CPU, it records its own gradient. Ours would run
// the forward again. Not where somebody looks at the calls or at what is saved for the backward,
// such as a checkpoint, which has to see the same in each call.
template <RnnCell cell>
Outputs<cell> dense_with_gradient(const DenseArgs<cell>& args) {
  bool wanted =
      needs_gradient(args.input) || needs_gradient(args.hx) || needs_gradient(args.network.params);
  bool is_watched = is_recording() || !SavedTensorHooks::get_tls_state().stack.empty();
  if (!wanted || is_watched || !args.input.is_cpu()) return run_dense<cell>(args);
  return KnownKernel<RnnProblem, train_dense<cell>, plain_train_dense<cell>>::call(args,
                                                                                   args.own.policy);
}

template <RnnCell cell>
Outputs<cell> dense(const DenseArgs<cell>& args) {
  bool plain = are_plain(args.input) && are_plain(args.hx) && are_plain(args.network.params);
  // The inner operator casts for autocast.
  if (!plain || at::autocast::is_autocast_enabled(args.input.device().type())) {
    return run_dense<cell>(args);
  }
  if (at::GradMode::is_enabled()) return dense_with_gradient<cell>(args);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return KnownKernel<RnnProblem, run_dense<cell>, plain_dense<cell>>::call(args, args.own.policy);
}

template <RnnCell cell>
Outputs<cell> packed(const PackedArgs<cell>& args) {
  TORCH_CHECK_VALUE(!args.batch_sizes.empty(), "torch_cudnn_ext::", kNames[static_cast<int>(cell)],
                    ": batch_sizes is empty, wanted one number for each time step");
  return run_network<cell>(args.data, args.batch_sizes, states_of(args.hx), args.network, false,
                           args.own);
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  register_kernels<dense<RnnCell::lstm>, packed<RnnCell::lstm>, dense<RnnCell::gru>,
                   packed<RnnCell::gru>, dense<RnnCell::tanh>, packed<RnnCell::tanh>,
                   dense<RnnCell::relu>, packed<RnnCell::relu>>(m);
}

// --- PyTorch's own, overridden

std::optional<std::string> why_rnn_is_declined(c10::DispatchKeySet keys, RnnCell cell,
                                               const Tensor& input, TensorList hx,
                                               TensorList params) {
  if (cell == RnnCell::lstm && hx.size() != 2) return "hx does not hold two tensors";
  if (auto reason = why_any_is_declined(keys, {{"input", input}})) return reason;
  for (const Tensor& t : hx) {
    if (auto reason = why_any_is_declined(keys, {{"hx", t}})) return reason;
  }
  for (const Tensor& t : params) {
    if (auto reason = why_any_is_declined(keys, {{"a parameter", t}})) return reason;
  }
  return std::nullopt;
}

template <RnnCell cell>
using AtenHidden = std::conditional_t<kIsLstm<cell>, TensorList, const Tensor&>;

template <RnnCell cell>
struct AtenRnn {
  static constexpr const char* kOp = kNames[static_cast<int>(cell)];
  static constexpr InGraphs kInGraphs = InGraphs::traced;

  static std::optional<std::string> why_declined(c10::DispatchKeySet keys, const Tensor& input,
                                                 AtenHidden<cell> hx, TensorList params, bool,
                                                 int64_t, double, bool, bool, bool) {
    return why_rnn_is_declined(keys, cell, input, hx, params);
  }
  static Outputs<cell> with_autograd(c10::DispatchKeySet, const Tensor& input, AtenHidden<cell> hx,
                                     TensorList params, bool has_biases, int64_t num_layers,
                                     double dropout, bool train, bool bidirectional,
                                     bool batch_first) {
    return dense<cell>({input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                        batch_first, OwnArgs()});
  }
};

template <RnnCell cell>
struct AtenRnnPacked {
  static constexpr const char* kOp = kNames[static_cast<int>(cell)];
  static constexpr InGraphs kInGraphs = InGraphs::traced;

  static std::optional<std::string> why_declined(c10::DispatchKeySet keys, const Tensor& data,
                                                 const Tensor& batch_sizes, AtenHidden<cell> hx,
                                                 TensorList params, bool, int64_t, double, bool,
                                                 bool) {
    bool readable = batch_sizes.is_cpu() && batch_sizes.scalar_type() == at::kLong &&
                    batch_sizes.is_contiguous() &&
                    !batch_sizes.key_set().has(c10::DispatchKey::Python);
    if (!readable) return "batch_sizes are no int64 numbers on the CPU";
    return why_rnn_is_declined(keys, cell, data, hx, params);
  }
  static Outputs<cell> with_autograd(c10::DispatchKeySet, const Tensor& data,
                                     const Tensor& batch_sizes, AtenHidden<cell> hx,
                                     TensorList params, bool has_biases, int64_t num_layers,
                                     double dropout, bool train, bool bidirectional) {
    IntArrayRef numbers{batch_sizes.const_data_ptr<int64_t>(),
                        static_cast<size_t>(batch_sizes.numel())};
    return packed<cell>({data, numbers, hx, params, has_biases, num_layers, dropout, train,
                         bidirectional, OwnArgs()});
  }
};

template <RnnCell cell>
struct RegisterCell {
  const RegisterOverrideOfComposite<AtenRnn<cell>,
                                    Outputs<cell>(const Tensor&, AtenHidden<cell>, TensorList, bool,
                                                  int64_t, double, bool, bool, bool)>
      input{c10::str(kNames[static_cast<int>(cell)], ".input").c_str()};
  const RegisterOverrideOfComposite<AtenRnnPacked<cell>,
                                    Outputs<cell>(const Tensor&, const Tensor&, AtenHidden<cell>,
                                                  TensorList, bool, int64_t, double, bool, bool)>
      packed{c10::str(kNames[static_cast<int>(cell)], ".data").c_str()};
};
const RegisterCell<RnnCell::lstm> lstm_overridden;
const RegisterCell<RnnCell::gru> gru_overridden;
const RegisterCell<RnnCell::tanh> tanh_overridden;
const RegisterCell<RnnCell::relu> relu_overridden;

}  // namespace
}  // namespace torch_cudnn_ext::rnn
