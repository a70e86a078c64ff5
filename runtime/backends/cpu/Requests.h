// Instructions that several backends run, read in one place: attributes and
// shapes. Types of operands are each backend's own matter.
#pragma once

#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Window.h"
#include "runtime/backends/cpu/simd/Simd.h"

namespace merak::cpu {

// All readers return false, with problems in the request, if it does not fit.

struct DropoutRequest {
  double ratio = 0;
  uint32_t id = 0;
  // Of the local elements in the global tensor; they multiply to x's.
  std::vector<int64_t> extents, strides;
};
// One input and one output of one shape.
bool readDropout(Request &request, DropoutRequest &dropout);

// A part of a tensor along the attribute `axis`, which begins where a scalar
// says: slice and place.
struct AxisPart {
  View view;        // the part, at the begin of the whole
  int64_t last = 0; // where it begins at most
  int64_t step = 0; // bytes from one begin to the next

  // The bytes from the begin of the whole to that of the part; errors name the
  // kernel.
  Result<int64_t> offset(const KernelCall &call, const char *kernel) const;
};
// `misfit` is said if the part is none of the whole.
bool readAxisPart(Request &request, const View &whole, const View &part,
                  const char *misfit, AxisPart &out);

struct ConvRequest {
  Window window;
  int64_t samples = 0, groups = 1;
  int64_t inChannels = 0, outChannels = 0; // of one group
};
// x [n, c, spatial], w [k, c / groups, spatial], y [n, k, spatial].
bool readConv(Request &request, const View &x, const View &w, const View &y,
              ConvRequest &conv);

struct PoolRequest {
  Window window;
  int64_t planes = 0; // samples x channels
  bool countPad = false;
  std::array<int64_t, Window::kDims> padEnd{0, 0, 0};
};
bool readPool(Request &request, const View &in, const View &out,
              PoolRequest &pool);

struct ReduceRequest {
  Nest kept;    // of x and y
  Nest reduced; // of x, in the order of its memory
  // Neighbouring summands lie together; or else neighbouring results do.
  bool runs() const {
    return reduced.rank() > 0 && reduced.strides[0].back() == 1;
  }
  bool columns() const {
    return !runs() && kept.rank() > 0 && kept.strides[0].back() == 1 &&
           kept.sizes.back() >= 8;
  }
};
// y has the reduced dimensions of x as size 1, or lacks them.
bool readReduce(Request &request, ReduceRequest &reduce);

// The table is [groups, before, rows, after], the other tensor [groups, before,
// ids, after], and each group has ids of its own: the ids are [groups, ids].
struct GatherRequest {
  Nest groups;        // operand 0: table, 1: the other tensor, 2: ids
  Nest before, after; // operand 0: table, 1: the other tensor
  Nest ids;           // operand 0: ids, 1: the other tensor
  int64_t rows = 0, rowStride = 0;
  int64_t globalRows = 0; // of the table that is split over ranks
};
// How updates of one row become one.
enum class Combine { Add, Mul, Max, Min };
bool readCombine(Request &request, Combine &combine);

// Rows of a table by ids: gather, scatter_add and scatter_reduce.
bool readGather(Request &request, const View &table, const View &ids,
                const View &other, GatherRequest &gather);

// A row-sparse gradient of slices: coalesce.
struct CoalesceRequest {
  int64_t size = 0;     // rows of the table
  bool compact = false; // sums at the front, one behind the other
  // Slices lie so in each block of so many places; 0: each at its id.
  int64_t block = 0;
  Nest ids;     // operand 0: ids, 1: slices, 2: unique, 3: rows
  Nest columns; // operand 0: slices, 1: rows
};
bool readCoalesce(Request &request, CoalesceRequest &coalesce);

// Ids of a table of `size` rows by whether others name their rows: split_ids.
// All operands are dense.
struct SplitIdsRequest {
  int64_t size = 0, ids = 0, named = 0; // rows, and how many there are

  // The row that an id is of; -1: none.
  int64_t row(int64_t id) const {
    const int64_t row = id < 0 ? id + size : id;
    return row >= 0 && row < size ? row : -1;
  }
};
bool readSplitIds(Request &request, SplitIdsRequest &split);

// An update by a row-sparse gradient; `tensors`: outputs that are a table and
// its states.
struct RowsRequest {
  Nest ids;         // operand 0: ids, 1: the gradient
  Nest columns;     // operand 0: the gradient, then parameter and states
  int64_t rows = 0; // of the table that are here
  std::vector<int64_t> rowStrides; // of parameter and states
};
bool readUpdateRows(Request &request, bool clip, size_t tensors,
                    RowsRequest &rows);
// The output behind `tensors` ones of a dense update: the parameter in 16 bits,
// for those who read it so. It lies as the parameter does.
void expectCopy(Request &request, size_t tensors);

// A history is a ring of rows of so many numbers, one for each of the last
// steps: whether it changed anything, and what an optimizer computes once a
// step.
inline constexpr int64_t kNoted = 4;
struct HistoryRequest {
  int64_t steps = 1;
  int64_t stepStride = 0, numberStride = 0;

  // Where the numbers of a step begin.
  int64_t at(int64_t step) const { return step % steps * stepStride; }
};

// The operands of a row-sparse update that notes how far rows are: the last two
// outputs.
struct ReachedRequest {
  size_t reached = 0, history = 0; // outputs
  int64_t rowStride = 0;           // of reached
  HistoryRequest steps;
};
// `tensors`: outputs before them, a table and its states.
bool readReached(Request &request, size_t tensors, ReachedRequest &reached);

// Steps that rows were left out of: sgd_replay, adamw_replay, adagrad_replay.
struct ReplayRequest {
  bool named = false; // by ids; else one of `stripes` parts of the rows
  int64_t stripes = 1;
  int64_t globalRows = 0; // negative ids count from there; 0: they name none
  int64_t rows = 0;       // that are here
  HistoryRequest history;
  Nest ids;                        // operand 0
  Nest columns;                    // operands: parameter and states
  std::vector<int64_t> rowStrides; // of these, then of reached

  int64_t stripeRows() const { return (rows + stripes - 1) / stripes; }
  // Up to which step rows are brought, of the scalar `step`: names are those
  // that this step looks up, stripes come behind its update.
  int64_t until(int64_t step) const { return named ? step - 1 : step; }
};
// `tensors`: outputs that are a table and its states.
bool readReplay(Request &request, size_t tensors, ReplayRequest &replay);

struct PickRequest {
  Nest rows; // operand 0: the matrix, 1: labels, 2: the vector
  int64_t columns = 0, columnStride = 0;
  bool hasIgnored = false;
  int64_t ignored = 0;
};
// One column a row: pick and pick_grad.
bool readPick(Request &request, const View &matrix, const View &labels,
              const View &vector, PickRequest &pick);

struct TopKRequest {
  int64_t rows = 0, length = 0, k = 0;
  bool smallest = false;
};
bool readTopK(Request &request, TopKRequest &topK);

// What optimizers compute once a step from the learning rate and the number of
// the step (from 1). `firstCount`: the count of updates in the first step.
struct SgdRequest {
  double momentum = 0, dampening = 0, weightDecay = 0;
  bool nesterov = false;
  // Without: the first step's gradient is the momentum, as torch.optim has it.
  // With: a step without an update so far is not dampened, ONNX's T of 0.
  std::optional<int64_t> firstCount;
  SgdStep at(double lr, int64_t step) const;
  SgdStep noted(const float *history) const;
};
void note(const SgdStep &step, float *history);
bool readSgd(Request &request, SgdRequest &sgd);

struct AdamRequest {
  double beta1 = 0, beta2 = 0, eps = 0, decay = 0, l2 = 0, postDecay = 0;
  bool plainRoot = false; // eps is added before the root is corrected
  int64_t firstCount = 1;
  AdamWStep at(double lr, int64_t step) const;
  AdamWStep noted(const float *history) const;
};
void note(const AdamWStep &step, float *history);
// Sets the bounds of steps that are taken one after the other.
void boundSteps(std::vector<AdamWReplayStep> &steps);
bool readAdam(Request &request, AdamRequest &adam);

struct AdagradRequest {
  double eps = 0, lrDecay = 0, l2 = 0;
  int64_t firstCount = 0;
  AdagradStep at(double lr, int64_t step) const;
  AdagradStep noted(const float *history) const;
};
void note(const AdagradStep &step, float *history);
bool readAdagrad(Request &request, AdagradRequest &adagrad);

} // namespace merak::cpu
