// Ctrl-C and termination as a flag that long work asks about.
#pragma once

namespace quarterturn {

/// What a second signal does: all that was done is stored by then, but may have to be copied out. A
/// second SIGINT always ends the process.
enum class SecondSignal { ends, ignored };

/// Begins to watch SIGINT, SIGTERM and SIGHUP; a SIGINT or SIGHUP that is ignored stays so.
void watch_interrupts(SecondSignal second = SecondSignal::ends);
bool is_interrupted();

}  // namespace quarterturn
