package redis

import (
	"strings"

	"github.com/redis/go-redis/v9"
)

// TestTime is the key from which a store made by WithTestTime reads the time, in microseconds.
const TestTime = "test:now"

// WithTestTime makes the script read the time from a key instead of the server's clock. Only tests of this package can.
func (s *Store) WithTestTime() *Store {
	source := strings.Replace(decideSource,
		"local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n",
		"local now = tonumber(redis.call('GET', '"+TestTime+"'))\n", 1)
	if source == decideSource {
		panic("the script reads the time in another way than this test knows")
	}
	// The server's own time runs on, so that keys must not end by it.
	source = strings.Replace(source, "max(1, ceildiv(life, 1000))", "3600000", 1)
	s.script = redis.NewScript(source)
	return s
}
