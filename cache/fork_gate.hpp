// SQLite over forks. A forked child inherits SQLite's mutexes and its table of open files and
// locks as they were at that moment: it would wait for threads that it does not have, and take the
// parent's locks for its own, which the kernel does not. So a fork waits until no thread is inside
// SQLite, and closes every file first; parent and child open them again when they are next used.
#pragma once

#include "generator/status.hpp"

namespace quarterturn::sqlite {

/// Held around all use of SQLite, whole transactions included; a fork waits for those of other
/// threads, for two seconds at most. Nests within a thread.
class Use {
 public:
  Use();
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  /// busy: not one call of SQLite may be made in this process, and no mutex of an inherited object
  /// be locked, as it was forked in the midst of a use (or past pthread_atfork).
  const Status& status() const { return status_; }

 private:
  Status status_;
};

/// What has a file open between uses.
class ClosedByFork {
 public:
  ClosedByFork();
  ClosedByFork(const ClosedByFork&) = delete;
  ClosedByFork& operator=(const ClosedByFork&) = delete;

  /// Called in the parent, before the fork, while there is no use.
  virtual void close_for_fork() = 0;

 protected:
  ~ClosedByFork();
};

}  // namespace quarterturn::sqlite
