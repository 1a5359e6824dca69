// The one translation unit that holds the bodies of Asio and Beast (see
// BOOST_ASIO_SEPARATE_COMPILATION): every other file includes declarations only, which halves the
// build.
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
