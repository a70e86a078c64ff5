#include "runtime/report/Decisions.h"

namespace merak::report {

planpb::Decisions toProto(const Decisions &decisions) {
  planpb::Decisions proto;
  for (const CandidatePlan &candidate : decisions.candidates) {
    planpb::CandidatePlan *out = proto.add_candidates();
    out->set_name(candidate.name);
    out->set_pp(candidate.pp);
    out->set_dp(candidate.dp);
    out->set_tp(candidate.tp);
    out->set_microbatches(candidate.microbatches);
    out->set_microbatch(candidate.microbatch);
    out->set_schedule(candidate.schedule);
    out->set_recompute(candidate.recompute);
    out->set_tp_overlap(candidate.tpOverlap);
    out->set_seconds(candidate.seconds);
    out->set_memory_bytes(candidate.memoryBytes);
    out->set_exposed_seconds(candidate.exposedSeconds);
    out->set_bubble_seconds(candidate.bubbleSeconds);
    out->set_chosen(candidate.chosen);
    out->set_infeasible(!candidate.feasible);
    out->set_why(candidate.why);
    out->set_only_drawn(candidate.onlyDrawn);
  }
  for (const StageDecision &stage : decisions.stages) {
    planpb::StageDecision *out = proto.add_stages();
    out->set_first(stage.first);
    out->set_last(stage.last);
    out->set_forward_seconds(stage.forwardSeconds);
    out->set_backward_seconds(stage.backwardSeconds);
    out->set_memory_bytes(stage.memoryBytes);
    out->set_memory_limit(stage.memoryLimit);
    out->set_ops_recomputed(stage.opsRecomputed);
    out->set_ops(stage.ops);
    out->set_recomputed_bytes(stage.recomputedBytes);
    out->set_recompute_seconds(stage.recomputeSeconds);
    out->set_why(stage.why);
  }
  proto.set_text(decisions.text);
  return proto;
}

Decisions decisionsOf(const planpb::PlanFile &file) {
  Decisions decisions;
  for (const planpb::CandidatePlan &proto : file.decisions().candidates())
    decisions.candidates.push_back({.name = proto.name(),
                                    .pp = proto.pp(),
                                    .dp = proto.dp(),
                                    .tp = proto.tp(),
                                    .microbatches = proto.microbatches(),
                                    .microbatch = proto.microbatch(),
                                    .schedule = proto.schedule(),
                                    .recompute = proto.recompute(),
                                    .tpOverlap = proto.tp_overlap(),
                                    .seconds = proto.seconds(),
                                    .memoryBytes = proto.memory_bytes(),
                                    .exposedSeconds = proto.exposed_seconds(),
                                    .bubbleSeconds = proto.bubble_seconds(),
                                    .chosen = proto.chosen(),
                                    .feasible = !proto.infeasible(),
                                    .why = proto.why(),
                                    .onlyDrawn = proto.only_drawn()});
  for (const planpb::StageDecision &proto : file.decisions().stages())
    decisions.stages.push_back({.first = proto.first(),
                                .last = proto.last(),
                                .forwardSeconds = proto.forward_seconds(),
                                .backwardSeconds = proto.backward_seconds(),
                                .memoryBytes = proto.memory_bytes(),
                                .memoryLimit = proto.memory_limit(),
                                .opsRecomputed = proto.ops_recomputed(),
                                .ops = proto.ops(),
                                .recomputedBytes = proto.recomputed_bytes(),
                                .recomputeSeconds = proto.recompute_seconds(),
                                .why = proto.why()});
  decisions.text = file.decisions().text();
  return decisions;
}

} // namespace merak::report
