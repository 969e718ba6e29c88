# Sourced by the trials of programs.

# serve ADDRESS NQN ARGUMENT...: starts the target of the search path, and returns when it listens. $target is its process.
serve() {
    serve_address=$1 serve_nqn=$2
    shift 2
    feedrail-target --listen "$serve_address:4420" --nqn "$serve_nqn" "$@" >/tmp/listening 2>/tmp/log &
    target=$!
    for _ in $(seq 300); do
        if grep --quiet '"listening"' /tmp/listening; then return; fi
        sleep 0.1
    done
    cat /tmp/log >&2
    return 1
}
