package compile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// Inputs is all that one pod's Update is made of.
type Inputs struct {
	Policies []*pushv1.Policy // compiled; Assemble does not change them
	HashKey  []byte
	Stores   []*pushv1.Store
	APIKeys  map[string][]*pushv1.APIKey // by policy
	KeySets  map[string][]*pushv1.KeySet // by policy
	Shares   []*pushv1.Share
}

// Assemble makes the Update. Equal inputs, in whatever order, give equal bytes and versions.
func Assemble(in Inputs) (*pushv1.Update, error) {
	secrets := &pushv1.Secrets{HashKey: in.HashKey, Stores: sortedBy(in.Stores, (*pushv1.Store).GetName)}
	rules := &pushv1.RuleSet{}
	for _, p := range sortedBy(in.Policies, PolicyName) {
		name := PolicyName(p)
		keys := &pushv1.APIKeySet{Policy: name, Keys: sortedBy(in.APIKeys[name], byHash)}
		sets := sortedBy(in.KeySets[name], (*pushv1.KeySet).GetIssuer)
		if len(keys.GetKeys()) > 0 {
			secrets.ApiKeys = append(secrets.ApiKeys, keys)
		}
		secrets.KeySets = append(secrets.KeySets, sets...)
		versioned, err := withVersion(p, keys, sets)
		if err != nil {
			return nil, err
		}
		rules.Policies = append(rules.Policies, versioned)
	}
	return encode(rules, secrets, sortedBy(in.Shares, (*pushv1.Share).GetPolicy))
}

// byHash orders API keys. The same key may stand in two Secrets: then holder and claims decide, so that the order of
// Secrets does not.
func byHash(k *pushv1.APIKey) string {
	order := append(slices.Clone(k.GetHash()), k.GetId()...)
	for _, claim := range sortedKeys(k.GetClaims()) {
		order = append(order, "\x00"+claim+"\x00"+k.GetClaims()[claim]...)
	}
	return string(order)
}

// PolicyName is the policy's namespace/name.
func PolicyName(p *pushv1.Policy) string { return Name(p.GetNamespace(), p.GetName()) }

func withVersion(p *pushv1.Policy, keys *pushv1.APIKeySet, sets []*pushv1.KeySet) (*pushv1.Policy, error) {
	messages := append(make([]proto.Message, 0, 2+len(sets)), p, keys)
	for _, s := range sets {
		messages = append(messages, s)
	}
	d := newDigest()
	for _, m := range messages {
		if _, err := d.message(m); err != nil {
			return nil, err
		}
	}
	versioned, ok := proto.Clone(p).(*pushv1.Policy)
	if !ok {
		return nil, fmt.Errorf("clone policy %s: another type", PolicyName(p))
	}
	versioned.Version = d.version()
	return versioned, nil
}

func encode(rules *pushv1.RuleSet, secrets *pushv1.Secrets, shares []*pushv1.Share) (*pushv1.Update, error) {
	d := newDigest()
	update := &pushv1.Update{Shares: shares}
	var err error
	if update.RuleSet, err = d.message(rules); err != nil {
		return nil, err
	}
	if update.Secrets, err = d.message(secrets); err != nil {
		return nil, err
	}
	for _, s := range shares {
		if _, err := d.message(s); err != nil {
			return nil, err
		}
	}
	update.ContentVersion = d.version()
	return update, nil
}

// digest adds up encoded messages, each with its length, so that no two lists of messages look the same.
type digest struct{ sum []byte }

func newDigest() *digest { return &digest{} }

func (d *digest) message(m proto.Message) ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	one := sha256.Sum256(data)
	d.sum = append(d.sum, one[:]...)
	return data, nil
}

func (d *digest) version() string {
	all := sha256.Sum256(d.sum)
	return hex.EncodeToString(all[:16])
}

func sortedBy[T any, K cmp.Ordered](list []T, key func(T) K) []T {
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	return sorted
}
