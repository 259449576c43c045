package redis

import (
	"fmt"

	"github.com/redis/go-redis/v9"
)

// ParseURL reads redis://user:password@host:port or rediss://….
func ParseURL(text string) (address, username, password string, secure bool, err error) {
	o, err := redis.ParseURL(text)
	if err != nil {
		return "", "", "", false, fmt.Errorf("read URL of the store: %w", err)
	}
	if o.DB != 0 {
		return "", "", "", false, fmt.Errorf("read URL of the store: database %d is not taken, only 0", o.DB) //nolint:err113 // usage
	}
	return o.Addr, o.Username, o.Password, o.TLSConfig != nil, nil
}
