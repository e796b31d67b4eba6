# Sourced by the scripts that install with uv: a machine whose pip is configured to use a mirror or extra certificates means
# that for uv as well. Needs .venv.
setting() { .venv/bin/python -m pip config get "$1" 2>/dev/null || true; }
: "${UV_DEFAULT_INDEX:=${PIP_INDEX_URL:-$(setting global.index-url)}}"
: "${SSL_CERT_FILE:=${PIP_CERT:-$(setting global.cert)}}"
[ -z "$UV_DEFAULT_INDEX" ] || export UV_DEFAULT_INDEX
[ -z "$SSL_CERT_FILE" ] || export SSL_CERT_FILE
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
