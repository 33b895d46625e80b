// Which requests the engine may be given. Rules that are data are tables of paths below
// GenerateRequest.request.
#pragma once

#include "enginewire/v1/engine_service.pb.h"

inline const char* const kModel = "hash";
constexpr uint32_t kRevision = 1;

// Throws a Failure that names the field, or returns.
void check(const enginewire::v1::GenerateRequest& generate);
