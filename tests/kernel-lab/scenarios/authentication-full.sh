# The kernel's host authenticates with each hash and each group.
# set: full
# limit: 2400
# kernel may say: authentication
# kernel may say: failed to connect queue
# kernel may say: Connect Invalid
hashes="sha256 sha384 sha512" groups="null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192"
. scenarios/authentication.sh
