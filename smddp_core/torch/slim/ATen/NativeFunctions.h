// In place of torch's file of this name, as Functions.h here: nothing of it is called.
#pragma once
