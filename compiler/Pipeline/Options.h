// The command line of merakc as a value. No MLIR here.
#pragma once

#include "passes/Planning/PlanFrontier.h"
#include "passes/Planning/Strategy.h"
#include "runtime/core/Status.h"
#include "runtime/plan/Optimizer.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace merak {

// What is asked of the search. Memory: the least that trains at all, of equals
// the fastest. Devices: the fewest that fit, and least time there.
enum class Objective { Time, Memory, Devices };

struct CompilerOptions {
  std::string input, output;
  std::string cluster;            // file; empty: `devices` in-process CPU ranks
  std::optional<int64_t> devices; // empty: the size of the pinned mesh
  // Several, ascending: one curve of the frontier for each. Else empty.
  std::vector<int64_t> deviceCounts;
  Objective objective = Objective::Time;
  std::string frontier; // file of all plans worth having, .json or .html
  std::string pick;     // the point of the frontier to compile
  // Parts of the model on a stage; empty: as the schedule is.
  std::optional<int64_t> chunks;
  std::map<std::string, int64_t> mesh;
  // --shape=ids=8x128,mask=8x1x128; -1 stands for "not bound" (a '?').
  std::map<std::string, std::vector<int64_t>> shapes;
  std::optional<int64_t> globalBatch, microbatch;
  bool train = true;
  std::string loss;
  std::vector<std::string> freeze, trainable;
  bool keepShared = false;
  bool dropout = true; // as the model says; else it is the identity
  Optimizer optimizer;
  bool optimizerGiven = false; // else a model's own is taken
  double gradClip = 0;
  std::string sparse = "off"; // gradients of tables: "off", "lazy", "exact"
  // By table: the part of its rows that a step looks up.
  std::map<std::string, double> touched;
  // Rows that no lookup of the next step needs are updated beside it.
  bool delayedRows = false;
  // Gradients whose sums over replicas would be waited for are summed beside
  // the next step's forward pass.
  bool delayedGradients = false;
  std::string data;        // in which it is counted; empty: it is not
  bool gradOverlap = true; // reductions of gradients beside the backward pass
  // Bytes of gradients that one collective reduces; none: what links make worth
  // while, 0: each gradient by itself.
  std::optional<int64_t> gradBucket;
  std::string sends = "early"; // to other stages: "early", "late", "blocking"
  // "bf16", "fp16": f32 only where digits matter; "fp8": bf16 with operands of
  // 8 bits.
  std::string precision = "fp32";
  std::string schedule = "auto";
  std::string recompute = "auto";
  std::string tpOverlap;   // "0" to "3" or "auto"; empty: not given
  std::string zero;        // "0" to "3" or "auto"; empty: not given
  std::string sequence;    // "on", "off" or "auto"; empty: not given
  std::string context;     // "on", "off" or "auto"; empty: not given
  std::string mixed;       // "off" or "auto"; empty: not given
  std::string castWeights; // "step", "use" or "auto"; empty: not given
  std::string parts;       // "off" or "auto"; empty: not given
  std::string reshard; // a strategy of passes/Resharding; empty: the cheapest
  std::string strategy, emitStrategy, emitSchedule;
  std::string hash = "sampled"; // of the model's files: "sampled" or "full"
  std::string emitOnnx;         // the model with IR 11's device notes
  std::string fromPhase, toPhase = "files", saveIr;
  int64_t memoryLimit = 0;            // bytes a rank; 0: the cluster's
  std::map<int64_t, double> forRates; // straggling rates by device
  // Several of these, of a plan each in the folder `output`; else empty.
  std::vector<std::map<int64_t, double>> family;
  std::string target;  // of generated kernels; empty: the device's
  std::string report;  // HTML page to write
  std::string remarks; // categories of remarks to print, as a regex
  bool quiet = false;
  bool verbose = false;   // all decisions, not only a screen of them
  bool timing = false;    // say where the time went
  bool check = false;     // only say what stands in the way of compiling
  bool operators = false; // only print the table of operators
  // As given, without what is written and printed: what a plan says of how it
  // was compiled. Files by their absolute paths.
  std::vector<std::string> given;
};

// What the arguments ask for. `exitCode` set: print `text` and leave with it
// (--help, --version, wrong usage).
struct ParsedOptions {
  CompilerOptions options;
  std::optional<int> exitCode;
  std::string text;
};
ParsedOptions parseOptions(int argc, const char *const *argv);

// The options of one plan of a family: its rates, its place in the folder.
CompilerOptions memberOf(const CompilerOptions &options, size_t member);

// "adamw:lr=1e-3,betas=0.9/0.999,eps=1e-8,weight_decay=0.01" or
// "sgd:lr=0.05,momentum=0.9", "adam:...", "adagrad:lr=0.01,lr_decay=0.1", as
// torch.optim's; also schedule=cosine,warmup=10,total=100,min=0.1.
Result<Optimizer> parseOptimizer(const std::string &text);

// The phases of --to and --from, in order.
const std::vector<std::string> &phaseNames();

} // namespace merak
