// The few functions of libpq that are called, as PostgreSQL's manual declares them. The library is
// opened at run time: neither its header nor the library itself is needed to build or to start.
#pragma once

#include "generator/status.hpp"

namespace quarterturn::pg {

struct PGconn;
struct PGresult;
/// Of libpq-fe.h; the layout is part of its ABI since version 5.
struct PQconninfoOption {
  char *keyword, *envvar, *compiled, *val, *label, *dispchar;
  int dispsize;
};
using NoticeProcessor = void (*)(void*, const char*);

// ConnStatusType, ExecStatusType.
inline constexpr int kConnectionOk = 0;
inline constexpr int kCommandOk = 1, kTuplesOk = 2, kSingleTuple = 9;
inline constexpr int kSqlState = 'C', kMessagePrimary = 'M';

// X(result, name, parameters)
#define QTURN_LIBPQ_FUNCTIONS(X)                                                                   \
  X(PQconninfoOption*, PQconninfoParse, (const char*, char**))                                     \
  X(void, PQconninfoFree, (PQconninfoOption*))                                                     \
  X(void, PQfreemem, (void*))                                                                      \
  X(PGconn*, PQconnectdbParams, (const char* const*, const char* const*, int))                     \
  X(int, PQstatus, (const PGconn*))                                                                \
  X(char*, PQerrorMessage, (const PGconn*))                                                        \
  X(void, PQfinish, (PGconn*))                                                                     \
  X(int, PQsocket, (const PGconn*))                                                                \
  X(int, PQsetnonblocking, (PGconn*, int))                                                         \
  X(NoticeProcessor, PQsetNoticeProcessor, (PGconn*, NoticeProcessor, void*))                      \
  X(int, PQsendQuery, (PGconn*, const char*))                                                      \
  X(int, PQsendQueryParams,                                                                        \
    (PGconn*, const char*, int, const unsigned*, const char* const*, const int*, const int*, int)) \
  X(int, PQsetSingleRowMode, (PGconn*))                                                            \
  X(int, PQflush, (PGconn*))                                                                       \
  X(int, PQconsumeInput, (PGconn*))                                                                \
  X(int, PQisBusy, (PGconn*))                                                                      \
  X(PGresult*, PQgetResult, (PGconn*))                                                             \
  X(int, PQresultStatus, (const PGresult*))                                                        \
  X(char*, PQresultErrorField, (const PGresult*, int))                                             \
  X(int, PQntuples, (const PGresult*))                                                             \
  X(char*, PQgetvalue, (const PGresult*, int, int))                                                \
  X(int, PQgetlength, (const PGresult*, int, int))                                                 \
  X(int, PQgetisnull, (const PGresult*, int, int))                                                 \
  X(char*, PQcmdTuples, (PGresult*))                                                               \
  X(void, PQclear, (PGresult*))                                                                    \
  X(const char*, PQparameterStatus, (const PGconn*, const char*))                                  \
  X(char*, PQhost, (const PGconn*))                                                                \
  X(char*, PQport, (const PGconn*))                                                                \
  X(char*, PQdb, (const PGconn*))                                                                  \
  X(char*, PQuser, (const PGconn*))

struct Libpq {
#define X(result, name, parameters) result(*name) parameters = nullptr;
  QTURN_LIBPQ_FUNCTIONS(X)
#undef X
};

/// libpq.so.5 by the loader's rules, opened once and never closed. no_driver: it is not here, or
/// lacks a function.
Result<const Libpq*> libpq();

}  // namespace quarterturn::pg
