// The whole-plan verifier: proves, before anything runs, that the programs of
// all ranks fit their memory, are free of races, talk to each other in one
// order and end. Each check reports everything it finds as sentences with
// coordinates: program, procedure, instruction, buffer, or rank.
//
// Work grows with program classes and ranks, never with pairs of ranks.
#pragma once

#include "runtime/plan/Plan.h"

namespace merak {

// All of the below, and verifyPartials (Partial.h). Later checks are skipped
// where earlier ones failed in a way that makes them meaningless.
Status verifyPlan(const LoadedPlan &plan);

// Indices, shapes, strides, offsets, events, layouts, slots: everything that is
// local to the manifest or to one instruction.
Status verifyStructure(const LoadedPlan &plan);

// Parts of verifyStructure. Numbers that overflow or are none: what comes
// first. And, of a plan whose indices are in range, what would make a step
// endless, its memory boundless, or a kernel run on operands that it was not
// compiled for.
Status verifyNumbers(const LoadedPlan &plan);
Status verifyExtents(const LoadedPlan &plan);

// Where programs train unlike microbatches, as several pipelines do, each one
// is trained by one pipeline.
Status verifyShares(const LoadedPlan &plan);

// Over one step of one program: accesses to the same bytes are ordered by
// streams, events and call waits; every read finds what was written through the
// same buffer, so that no two live buffers share bytes; parameters survive the
// step and are updated once.
Status verifyMemory(const LoadedPlan &plan, int program);

// Sends meet receives and collectives meet collectives: same order, shapes,
// types, reductions and microbatches at all ranks that take part.
Status verifyMatching(const LoadedPlan &plan);

// Runs the synchronization of all ranks with blocking transfers (rendezvous)
// and prints who waits for whom if they get stuck.
Status verifyProgress(const LoadedPlan &plan);

// Who meets in what runs between steps runs the same.
Status verifyEntries(const LoadedPlan &plan);

// Rows that a step leaves to the next one are applied there once, as of that
// step.
Status verifyDelayed(const planpb::Program &program);

// Copies of parameters that outlive a step are those of the parameters.
Status verifyCopies(const planpb::Program &program);

// Gradients of a scaled loss are unscaled before anything is updated by them.
Status verifyLossScale(const LoadedPlan &plan);

// What ranks hold as copies stays equal: follows which values differ along
// which mesh axes, so that a forgotten reduction is found even if all ranks
// forgot it.
Status verifyReplication(const LoadedPlan &plan);

} // namespace merak
