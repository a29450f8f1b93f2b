// Counters and recorded operations of a group as JSON lines, and the files they go to.
#pragma once

#include <string>
#include <vector>

#include "delegated_recorder.hpp"
#include "smddp/env.hpp"
#include "smddp/flight_recorder.hpp"
#include "smddp/topology.hpp"
#include "transport/control.hpp"

namespace smddp {

/// Whose figures they are.
struct ReportSource {
  std::string group;
  const Topology& topology;
  const FlightRecorder& recorder;
  const DelegatedRecorder& delegated;
  std::string error;  ///< What ended the group; "" while it lives.
  Awaited awaited;    ///< Whom the operation under way waits for, or failed for.
};

/// One JSON object: `group`, `rank`, `size`, `host`, `pid`, `version`, `path`, `error`, and `operations` by kind, each
/// with `calls`, `failures`, `bytes`, `seconds`, `exposed_seconds`, `bytes_per_second`; those that another library
/// carried out by name.
std::string stats_json(const ReportSource& source);

/// A line with `group`, `rank`, ..., `error`, then one a remembered operation, oldest first: `sequence`, `operation`,
/// `dtype`, `reduce`, `root`, `bytes`, `state`, `started`, `ended` (Unix time in seconds), `waiting_for`.
/// Those that another library carries out have `delegated`; between two ranks, `peer` and no `sequence`.
std::string flight_recorder_lines(const ReportSource& source);

/// Writes flight_recorder_lines() to a file of its own in env.flight_recorder_dir.
/// @returns a remark for the error's text: where it is, or why it could not be written. "" when no folder is set.
std::string dump_flight_recorder(const Env& env, const ReportSource& source);

/// SMDDP_DEBUG=INFO: what the group is and how it was set, from rank 0, and a line about each host from its first rank.
void print_info(const std::string& group, const Topology& topology, const Env& env);

/// Says on stderr which environment variables are named like settings and are none, if `rank`, in the process's first
/// group, is 0.
void print_unknown_settings(int rank);

/// Appends stats_json() to env.stats_file, if set. A failure is reported on stderr: the job's result does not depend
/// on it.
void write_stats(const Env& env, const ReportSource& source);

}  // namespace smddp
