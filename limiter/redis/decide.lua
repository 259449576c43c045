-- Decides a request for each of the callers that ask the same, one after the other, in one step; or takes back what
-- one request was charged.
--
-- KEYS: one counter for each limit of each check, in order.
-- ARGV: number of callers, or 0 to take back; number of checks; then for each check
--   algorithm letter, cost, shadow (0|1), countRejected (0|1), queue length, longest wait (µs), what is taken back
--   (LeakyBucket: the end of the backlog as it was left; else the time of the decision), number of limits,
--   then for each limit: requests, capacity, window (µs).
-- Returns, flat: the time (µs), then a row for each caller with, for each check: allowed (0|1), delay (µs), then for each
--   limit: fits (0|1), remaining, current, reset (µs), retry (µs; -1 = never; 0 where allowed).
--   A row that charges nothing stands for all callers after it.

local function readcheck(first)
  local check = { algorithm = algorithms[ARGV[position + 1]], limits = {} }
  position = position + 1
  check.cost, check.shadow, check.rejected = take(), take() == 1, take() == 1
  local queue, maxwait = take(), take()
  check.back = take()
  for i = 1, take() do
    local t = { requests = take(), capacity = take(), window = take(), queue = queue, maxwait = maxwait }
    local c = { terms = t, key = KEYS[first + i], value = redis.call('GET', KEYS[first + i]) }
    check.algorithm.advance(c, t)
    check.limits[i] = c
  end
  return check
end

local function readchecks()
  local checks, used = {}, 0
  for i = 1, take() do
    checks[i] = readcheck(used)
    used = used + #checks[i].limits
  end
  return checks
end

-- Whether the request may pass, as far as rules that are no shadows have it.
local function admit(checks)
  local admitted = true
  for _, check in ipairs(checks) do
    check.allowed = true
    for _, c in ipairs(check.limits) do
      c.fits = check.algorithm.fits(c, c.terms, max(1, check.cost))
      check.allowed = check.allowed and c.fits
    end
    admitted = admitted and (check.allowed or check.shadow)
  end
  return admitted
end

local function charges(check, t, admitted)
  if check.cost == 0 then return false end
  if not check.allowed then return check.rejected and check.cost <= t.capacity end
  return admitted or check.shadow
end

-- Charges a check and appends how it stands to the reply; tells whether anything was charged.
local function settle(check, admitted, reply)
  local algorithm, asked, changed = check.algorithm, max(1, check.cost), false
  local head = #reply
  reply[head + 1], reply[head + 2] = check.allowed and 1 or 0, 0
  for _, c in ipairs(check.limits) do
    local t = c.terms
    if algorithm.delay and check.allowed and check.cost > 0 then reply[head + 2] = algorithm.delay(c, t) end
    if charges(check, t, admitted) then
      algorithm.add(c, t, check.cost)
      c.changed, changed = true, true
    end
    local remaining, current, reset = algorithm.standing(c, t)
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = c.fits and 1 or 0, remaining, current, reset
    reply[n + 5] = check.allowed and 0 or algorithm.retry(c, t, asked)
  end
  return changed
end

local function decide(checks, reply)
  local admitted, changed = admit(checks), false
  for _, check in ipairs(checks) do changed = settle(check, admitted, reply) or changed end
  return changed
end

local function takeback(checks)
  for _, check in ipairs(checks) do
    for _, c in ipairs(check.limits) do
      c.edited = check.algorithm.takeback(c, c.terms, check.cost, check.back)
    end
  end
end

local function save(checks)
  for _, check in ipairs(checks) do
    for _, c in ipairs(check.limits) do
      if c.changed or c.edited then
        write(c.key, check.algorithm.save(c, c.terms))
      end
    end
  end
end

local callers = take()
local checks, reply = readchecks(), { now }
if callers == 0 then takeback(checks) end
for _ = 1, callers do
  if not decide(checks, reply) then break end
end
save(checks)
return reply
