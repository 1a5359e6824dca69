#include "core/cloud_error.hpp"

#include <string>

namespace sandboxd::core {
namespace {

error_name name_of(cloud::failure_kind kind) noexcept {
    using enum cloud::failure_kind;
    switch (kind) {
    case unreachable:
        return error_name::cloud_unreachable;
    case interrupted:
        return error_name::cloud_unreachable;
    case unauthorized:
        return error_name::unauthorized;
    case forbidden:
        return error_name::unauthorized;
    case not_found:
        return error_name::sandbox_gone;
    case not_found_unproven:
        return error_name::cloud_error;
    case conflict:
        return error_name::cloud_error;
    case too_large:
        return error_name::too_large;
    case bad_request:
        return error_name::cloud_error;
    case cap_reached:
        return error_name::cap_reached;
    case rate_limited:
        return error_name::rate_limited;
    case no_capacity:
        return error_name::no_capacity;
    case server_error:
        return error_name::cloud_error;
    case bad_answer:
        return error_name::cloud_error;
    }
    return error_name::internal_error;
}

} // namespace

rpc_error error_from(const cloud::failure& failure, std::string_view doing) {
    std::string text = "while " + std::string(doing) + ", the platform ";
    if (failure.status != 0) {
        text += "answered " + std::to_string(failure.status);
        if (!failure.message.empty()) {
            text += ": " + failure.message;
        }
    } else if (failure.kind == cloud::failure_kind::unreachable) {
        text += "could not be reached: " + failure.message;
    } else {
        text += "did not answer: " + failure.message;
    }
    return {name_of(failure.kind), text};
}

rpc_error plain_error_from(const cloud::failure& failure, std::string_view doing) {
    const rpc_error error = error_from(failure, doing);
    switch (error.name()) {
    case error_name::cloud_unreachable:
    case error_name::unauthorized:
    case error_name::rate_limited:
        return error;
    case error_name::cap_reached:
        return {error_name::rate_limited, error.what()};
    default:
        return {error_name::cloud_error, error.what()};
    }
}

rpc_error machine_error_from(const cloud::failure& failure, std::string_view doing) {
    const rpc_error error = error_from(failure, doing);
    const bool wanted =
        error.name() == error_name::cap_reached || error.name() == error_name::no_capacity;
    return wanted ? error : plain_error_from(failure, doing);
}

bool is_transient(const cloud::failure& failure) noexcept {
    using enum cloud::failure_kind;
    switch (failure.kind) {
    case unreachable:
    case interrupted:
    case not_found_unproven:
    case rate_limited:
    case no_capacity:
    case server_error:
    case bad_answer:
        return true;
    default:
        return false;
    }
}

} // namespace sandboxd::core
