// Which contract the library was written for, and what every engine says about itself.
#pragma once

#include <limits>
#include <random>

#include "enginewire/v1/discovery_service.pb.h"

namespace enginewire {

constexpr uint32_t kRevision = 2;
constexpr uint32_t kOldestRevision = 1;
inline const char* const kSchemaDigest = "fa41fa5ef2bbc2ee20ed039adc070fe8fecaf5669fa3d37b4cb1b468b8735401";

// Another one in every life of the process.
inline const std::string& lifetime_id() {
  static const std::string id =
      std::to_string(std::random_device()()) + "-" + std::to_string(std::random_device()());
  return id;
}

// How many tokens prompt and answer may have together.
inline uint32_t window_of(const v1::EngineConfig& config) {
  return config.has_context_length() ? config.context_length() : std::numeric_limits<uint32_t>::max();
}

inline v1::GetEngineInfoResponse info(const std::string& name, const v1::EngineConfig& config) {
  v1::GetEngineInfoResponse info;
  *info.mutable_config() = config;
  info.set_engine_name(name);
  info.set_engine_version("1");
  info.set_instance_id(lifetime_id());
  info.set_engine_lifetime_id(lifetime_id());
  info.set_contract_revision(kRevision);
  info.set_minimum_client_revision(kOldestRevision);
  info.set_maximum_client_revision(kRevision);
  info.set_schema_digest(kSchemaDigest);
  return info;
}

}  // namespace enginewire
