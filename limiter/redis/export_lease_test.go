package redis

import "strings"

// WithTestLeases makes the script that leases read the time from TestTime. Only tests of this package can.
func (s *Store) WithTestLeases() *Store {
	source := strings.Replace(leaseSource,
		"local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n",
		"local now = tonumber(redis.call('GET', '"+TestTime+"'))\n", 1)
	if source == leaseSource {
		panic("the script reads the time in another way than this test knows")
	}
	s.lease = newScript(strings.Replace(source, "max(1, ceildiv(life, 1000))", "3600000", 1))
	return s
}
