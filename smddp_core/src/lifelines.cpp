#include "lifelines.hpp"

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "smddp/errors.hpp"
#include "table.hpp"

namespace smddp {
namespace {

using std::chrono::milliseconds;

// A rank that has waited in vain for an answer of the rank 0 that the store names waits so long for another one's name.
constexpr milliseconds kChangePatience{500};
// By how much rank 0 may start later than a rank that cannot start at all, for it to hear why.
constexpr milliseconds kStartPatience{3000};
// How often one that waits for others looks into the store, which serves all ranks of a job.
constexpr milliseconds kStoreInterval{500};

std::string to_text(const Root& root) {
  return std::string(root.nonce.begin(), root.nonce.end()) + " " + smddp::to_text(root.info);
}

Root root_from(const std::string& text) {
  Root root;
  if (text.size() <= root.nonce.size()) throw UsageError("unreadable record of rank 0 in the store: '" + text + "'");
  std::copy_n(text.begin(), root.nonce.size(), root.nonce.begin());
  root.info = rank_info_from(text.substr(root.nonce.size()));
  return root;
}

// What a meeting calls several times a second: `often` each time, `rarely` at kStoreInterval.
std::function<void()> looking(std::function<void()> often, std::function<void()> rarely) {
  return [often = std::move(often), rarely = std::move(rarely), next = Deadline(kStoreInterval)]() mutable {
    often();
    if (!next.passed()) return;
    rarely();
    next = Deadline(kStoreInterval);
  };
}

}  // namespace

Root Lifelines::meet(const Socket& listener, const RankInfo& mine) {
  begun_ = true;
  Root root = options_.rank == 0 ? open(listener, mine) : join(listener);
  met_ = true;
  return root;
}

// Rank 0 is called by all others.
Root Lifelines::open(const Socket& listener, const RankInfo& mine) {
  Root root{mine, make_nonce(), {}};
  root.key = handshake_key(options_.env.job_secret, root.nonce);
  const std::string text = to_text(root);
  meeting_point_.open(text);
  Meeting meeting(listener, 0, options_.job_ranks, root.key, meeting_point_.deadline(),
                  looking([this] { meeting_point_.check(); }, [&] { meeting_point_.check_excuses(text); }));
  std::vector<int> awaited(static_cast<std::size_t>(options_.size - 1));
  std::iota(awaited.begin(), awaited.end(), 1);
  for (const int r : awaited) meeting.expect({r, static_cast<int>(Channel::control)});
  // Those that have come may ask whom this rank still waits for.
  control_.set_awaited(0, awaited);
  run(meeting, [&](int met) {
    awaited.erase(std::remove(awaited.begin(), awaited.end(), met), awaited.end());
    control_.set_awaited(0, awaited);
  });
  return root;
}

// What the store has first may be from a rank 0 that ended before its group had met: torchrun keeps one store for all
// attempts of a job. Nobody answers there, or somebody who does not know the nonce, until the new one has spoken.
Root Lifelines::join(const Socket& listener) {
  for (;;) {
    const std::string text = meeting_point_.root();
    Root root = root_from(text);
    root.key = handshake_key(options_.env.job_secret, root.nonce);
    try {
      require_version(root.info.version, "rank 0 on " + root.info.name);
      call_rank_0(listener, root, text);
      return root;
    } catch (const RootChanged&) {
    } catch (const Error&) {
      if (!changed_soon(text)) throw;
    }
  }
}

void Lifelines::call_rank_0(const Socket& listener, const Root& root, const std::string& text) {
  Meeting meeting(listener, options_.rank, options_.job_ranks, root.key, meeting_point_.deadline(),
                  looking([this] { meeting_point_.check(); }, [&] { meeting_point_.check_root(text); }));
  meeting.call({0, static_cast<int>(Channel::control)}, root.info);
  run(meeting, [](int) {});
}

void Lifelines::run(Meeting& meeting, const std::function<void(int)>& met) {
  meeting.run([&](Line line, Socket socket) {
    set_link_timeout(socket, options_.env.link_timeout);
    control_.add(line.first, std::move(socket));
    met(line.first);
  });
}

bool Lifelines::changed_soon(const std::string& text) {
  for (const Deadline patience(kChangePatience); !patience.passed();) {
    try {
      meeting_point_.check_root(text);
    } catch (const RootChanged&) {
      return true;
    } catch (const Error&) {
      return false;  // the store fails: that is not why the meeting did
    }
    std::this_thread::sleep_for(kStoreInterval / 10);
  }
  return false;
}

void Lifelines::give_up(const Error& error) {
  control_.raise(error.kind(), error.what());
  if (met_) return;
  if (options_.rank == 0) {
    // Otherwise the others have its address, and find nobody there.
    if (!begun_) meeting_point_.refuse(error.what());
    return;
  }
  meeting_point_.excuse(options_.rank, error.what(), begun_ ? milliseconds(0) : kStartPatience);
}

}  // namespace smddp
