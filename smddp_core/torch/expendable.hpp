// Threads that may be left behind in somebody else's code when the interpreter ends.
#pragma once

namespace smddp::torch_binding {

/// Says so of the calling thread. When such a thread asks for the interpreter after that has ended, Python
/// (before 3.14) ends it by unwinding its stack, which C++ code that must not throw answers with std::terminate():
/// instead of ending the process by SIGABRT, the thread then sleeps until the process is gone.
void make_expendable();

}  // namespace smddp::torch_binding
