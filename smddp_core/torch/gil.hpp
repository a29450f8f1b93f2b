// The Python interpreter's lock.
#pragma once

#include <Python.h>

namespace smddp::torch_binding {

/// Lets other Python threads run while this one blocks, if it holds the interpreter at all.
class GilRelease {
 public:
  GilRelease() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~GilRelease() {
    if (state_) PyEval_RestoreThread(state_);
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace smddp::torch_binding
