// Was it an error, or just somebody who told a coroutine to end?
#pragma once

#include <boost/asio/error.hpp>
#include <boost/asio/multiple_exceptions.hpp>
#include <boost/system/system_error.hpp>

#include <exception>

namespace sandboxd {

// True for no exception and for operation_aborted, also from two operations that ran side by side
// (Asio's && and || report the two as multiple_exceptions; the first speaks for both).
inline bool is_cancellation(const std::exception_ptr& problem) {
    if (!problem) {
        return true;
    }
    try {
        std::rethrow_exception(problem);
    } catch (const boost::asio::multiple_exceptions& several) {
        return is_cancellation(several.first_exception());
    } catch (const boost::system::system_error& error) {
        return error.code() == boost::asio::error::operation_aborted;
    } catch (...) {
        return false;
    }
}

} // namespace sandboxd
