package inject

import "maps"

// Carry brings the annotations of a workload to its pod template and returns the template's annotations,
// and whether they differ from what they were. The maps passed in are not changed.
//
// What stands on the template itself is narrower and wins. A value there that equals what the workload said
// before the change was carried, so it follows the workload: to another value, or away.
// before and templateBefore are nil for a new workload.
func Carry(workload, template, before, templateBefore map[string]string) (map[string]string, bool) {
	result := make(map[string]string, len(template)+1)
	maps.Copy(result, template)
	changed := false
	for _, key := range carriedKeys() {
		wanted, wants := workload[key]
		value, has := template[key]
		follows := !has || carried(key, value, before, templateBefore)
		switch {
		case !follows || wants == has && wanted == value:
		case wants:
			result[key], changed = wanted, true
		default:
			delete(result, key)
			changed = true
		}
	}
	return result, changed
}

// carried tells whether the template's value came from the workload.
func carried(key, value string, before, templateBefore map[string]string) bool {
	was, stood := before[key]
	templateWas, carriedThen := templateBefore[key]
	return stood && carriedThen && was == value && templateWas == value
}
