package memory

const (
	week   = 7 * 24 * 3600 * 1_000_000
	monday = 4 * 24 * 3600 * 1_000_000 // 1970-01-05, the first Monday of the epoch

	// maxCount bounds what countRejected adds up.
	maxCount = 1<<31 - 1
)

// windowStart returns when the window that holds now began: windows are aligned to the epoch, whole weeks to Monday.
func windowStart(now, window int64) int64 {
	var offset int64
	if window%week == 0 {
		offset = monday
	}
	return (now-offset)/window*window + offset
}

// fixedWindow counts what each window of the clock admits.
type fixedWindow struct {
	now, start, count int64
	terms             terms
}

func (w *fixedWindow) advance(now int64, t terms) {
	w.terms = t
	w.now = max(now, w.start)
	if start := windowStart(w.now, t.window); start != w.start {
		w.start, w.count = start, 0
	}
}

func (w *fixedWindow) fits(cost int64) bool { return w.count+cost <= w.terms.requests }

func (w *fixedWindow) add(cost int64) { w.count = min(w.count+cost, maxCount) }

func (w *fixedWindow) standing(cost int64) standing {
	s := standing{current: w.count, remaining: max(0, w.terms.requests-w.count), retry: never}
	rest := w.start + w.terms.window - w.now
	if w.count > 0 {
		s.reset = rest
	}
	switch {
	case w.fits(cost):
		s.retry = 0
	case cost <= w.terms.requests:
		s.retry = rest
	}
	return s
}

func (w *fixedWindow) takeBack(now int64, t terms, cost, at int64) {
	w.advance(now, t)
	if windowStart(at, t.window) == w.start {
		w.count = max(0, w.count-cost)
	}
}

func (w *fixedWindow) expires() int64 { return w.start + w.terms.window }

// slidingCounter weighs the previous window's count by the part of it that the sliding window still covers, rounded up.
type slidingCounter struct {
	now, start, count, previous int64
	terms                       terms
}

func (w *slidingCounter) advance(now int64, t terms) {
	w.terms = t
	w.now = max(now, w.start)
	start := windowStart(w.now, t.window)
	if start == w.start {
		return
	}
	if start == w.start+t.window {
		w.previous = w.count
	} else {
		w.previous = 0
	}
	w.start, w.count = start, 0
}

// counted is the weighted count now.
func (w *slidingCounter) counted() int64 {
	weighted, rem := muldiv(w.previous, w.start+w.terms.window-w.now, w.terms.window)
	if rem > 0 {
		weighted++
	}
	return weighted + w.count
}

func (w *slidingCounter) fits(cost int64) bool { return w.counted()+cost <= w.terms.requests }

func (w *slidingCounter) add(cost int64) { w.count = min(w.count+cost, maxCount) }

func (w *slidingCounter) standing(cost int64) standing {
	s := standing{current: w.counted(), retry: never}
	s.remaining = max(0, w.terms.requests-s.current)
	s.reset = max(0, w.expires()-w.now)
	if cost <= w.terms.requests && w.terms.requests > 0 {
		s.retry = w.retry(cost)
	}
	return s
}

// retry is the first moment at which the weighted count leaves room for cost: in this window, or in the next, where
// this window's count is the previous one.
func (w *slidingCounter) retry(cost int64) int64 {
	rest := w.start + w.terms.window - w.now
	room := w.terms.requests - cost
	if w.count <= room {
		return max(0, rest-covered(room-w.count, w.previous, w.terms.window))
	}
	return rest + w.terms.window - covered(room, w.count, w.terms.window)
}

// covered is the longest overlap at which count weighs at most room.
func covered(room, count, window int64) int64 {
	if count <= room {
		return window
	}
	overlap, _ := muldiv(room, window, count)
	return overlap
}

func (w *slidingCounter) takeBack(now int64, t terms, cost, at int64) {
	w.advance(now, t)
	switch windowStart(at, t.window) {
	case w.start:
		w.count = max(0, w.count-cost)
	case w.start - t.window:
		w.previous = max(0, w.previous-cost)
	}
}

func (w *slidingCounter) expires() int64 {
	switch {
	case w.count > 0:
		return w.start + 2*w.terms.window
	case w.previous > 0:
		return w.start + w.terms.window
	default:
		return w.now
	}
}
