module peers/client

go 1.24.0

require (
	github.com/redis/go-redis/v9 v9.17.3
	github.com/spaolacci/murmur3 v1.1.0
	golang.org/x/crypto v0.44.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	golang.org/x/sys v0.38.0 // indirect
)
