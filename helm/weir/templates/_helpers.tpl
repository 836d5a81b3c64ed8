{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "weir.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "weir.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end -}}

{{- /* Labels of all objects except the gateways and their selectors, which have a component of their own. */ -}}
{{- define "weir.labels" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "weir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* A listener's name in a form that Kubernetes accepts. */ -}}
{{- define "weir.listenerName" -}}
{{- regexReplaceAll "[^a-z0-9]+" (lower .) "-" | trimAll "-" | trunc 20 | trimSuffix "-" -}}
{{- end -}}

{{- /* The listeners as YAML under the key `listeners`, with default addresses. The default of broker_ports equals Weir's own; the
Service needs it as well. */ -}}
{{- define "weir.listeners" -}}
{{- $root := . -}}
{{- $filled := list -}}
{{- range .Values.config.listeners -}}
{{- $listener := deepCopy . -}}
{{- if not (hasKey $listener "name") -}}{{- $_ := set $listener "name" "clients" -}}{{- end -}}
{{- if not (hasKey $listener "host") -}}{{- $_ := set $listener "host" "0.0.0.0" -}}{{- end -}}
{{- if not (hasKey $listener "advertised_host") -}}
{{- $service := printf "%s-%s" (include "weir.fullname" $root) (include "weir.listenerName" $listener.name) -}}
{{- $_ := set $listener "advertised_host" (printf "%s.%s.svc.%s" $service $root.Release.Namespace $root.Values.clusterDomain) -}}
{{- end -}}
{{- if not (or $listener.sni $listener.broker_ports) -}}
{{- $port := int $listener.bootstrap_port -}}
{{- $_ := set $listener "broker_ports" (printf "%d-%d" (add $port 1) (add $port 100)) -}}
{{- end -}}
{{- $filled = append $filled $listener -}}
{{- end -}}
{{- toYaml (dict "listeners" $filled) -}}
{{- end -}}

{{- define "weir.config" -}}
{{- $listeners := (include "weir.listeners" . | fromYaml).listeners -}}
{{- $config := set (deepCopy .Values.config) "listeners" $listeners -}}
{{- $admin := printf ".%s-admin.%s" (include "weir.fullname" .) .Release.Namespace -}}
{{- $names := list $admin (printf "%s.svc" $admin) (printf "%s.svc.%s" $admin .Values.clusterDomain) -}}
{{- $_ := set $config.admin "allowed_hosts" (concat ($config.admin.allowed_hosts | default list) $names) -}}
{{- $room := include "weir.ledgerBytes" . -}}
{{- if $room -}}
{{- if not (hasKey $config.ledger "max_bytes") -}}
{{- $_ := set $config.ledger "max_bytes" (mulf $room 0.8 | int64) -}}
{{- else if and (gt (float64 $config.ledger.max_bytes) (float64 $room)) (not (include "weir.ledgerOnOwnClaim" .)) -}}
{{- fail (printf "config.ledger.max_bytes is %d, more than the size of the volume of %s: increase persistence.size (or ledgerVolume.size), or remove max_bytes for 80 %% of the volume" (int64 $config.ledger.max_bytes) $config.ledger.path) -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- /* The ledger's path with a slash behind it. A relative path starts at the image's working directory. Empty without a ledger. */ -}}
{{- define "weir.ledgerPath" -}}
{{- with dig "path" "" (.Values.config.ledger | default dict) -}}
{{- printf "%s/" (clean (ternary . (printf "/var/lib/weir/%s" .) (isAbs .))) -}}
{{- end -}}
{{- end -}}

{{- /* Not empty if the ledger is on the claims of a StatefulSet's pods. They can be enlarged by hand, but not by these values. */ -}}
{{- define "weir.ledgerOnOwnClaim" -}}
{{- $path := include "weir.ledgerPath" . -}}
{{- if and (hasPrefix "/var/lib/weir/" $path) (eq .Values.kind "StatefulSet") .Values.persistence.enabled -}}yes{{- end -}}
{{- end -}}

{{- /* The size of the ledger's volume in bytes; empty without a ledger, or if the chart does not create the volume. */ -}}
{{- define "weir.ledgerBytes" -}}
{{- $path := include "weir.ledgerPath" . -}}
{{- $size := "" -}}
{{- $foreign := false -}}
{{- range .Values.extraVolumeMounts -}}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $path -}}{{- $foreign = true -}}{{- end -}}
{{- end -}}
{{- if $foreign -}}
{{- else if hasPrefix "/var/lib/weir/" $path -}}
{{- $size = .Values.persistence.size -}}
{{- else if and (hasPrefix "/var/lib/weir-ledger/" $path) .Values.ledgerVolume.enabled (not .Values.ledgerVolume.existingClaim) -}}
{{- $size = .Values.ledgerVolume.size -}}
{{- end -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- if and $size (regexMatch "^[0-9.]+[A-Za-z]*$" $size) (hasKey $units (regexFind "[A-Za-z]*$" $size)) -}}
{{- mulf (regexFind "^[0-9.]+" $size | float64) (get $units (regexFind "[A-Za-z]*$" $size) | float64) | int64 -}}
{{- end -}}
{{- end -}}

{{- /* The time from SIGTERM to SIGKILL: the delay, the drain, and ten seconds to write files. A supervisor waits ten seconds for its
workers to write theirs, and has ten more to kill a worker that hangs. */ -}}
{{- define "weir.graceSeconds" -}}
{{- $connections := .Values.config.connections | default dict -}}
{{- $drain := addf (dig "drain_delay_seconds" 0.0 $connections) (dig "drain_seconds" 10.0 $connections) -}}
{{- add (ceil $drain) (ternary 20 10 (gt (int (default 1 .Values.config.workers)) 1)) -}}
{{- end -}}

{{- /* The Secrets of `upstream`, as YAML: those with a path in it. A relative path starts at the config file's folder. */ -}}
{{- define "weir.upstreamSecrets" -}}
{{- $needed := dict -}}
{{- range $quoted := regexFindAll "\"[^\"]+\"" (toJson .Values.config.upstream) -1 -}}
{{- $path := trimAll "\"" $quoted -}}
{{- $whole := clean (ternary $path (printf "/etc/weir/config/%s" $path) (isAbs $path)) -}}
{{- range $name, $secret := $.Values.secrets -}}
{{- if hasPrefix (printf "/etc/weir/secrets/%s/" $name) $whole -}}{{- $_ := set $needed $name $secret -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $needed -}}
{{- end -}}

{{- /* The probes of gateways and volume agents. A value of null removes a probe. */ -}}
{{- define "weir.probes" -}}
{{- range $name, $path := dict "startup" "/livez" "liveness" "/livez" "readiness" "/readyz" }}
{{- with get $.Values.probes $name }}
{{ $name }}Probe:
  httpGet: {path: {{ $path }}, port: admin}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The volumes of `secrets`, which are all values of that name or a part of them. */ -}}
{{- define "weir.secretVolumes" -}}
{{- $root := .root -}}
{{- range $name, $secret := .secrets }}
- name: secret-{{ $name }}
  secret:
    secretName: {{ $secret.secretName | default (printf "%s-%s" (include "weir.fullname" $root) $name) }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "weir.secretMounts" -}}
{{- range $name, $_ := .secrets }}
- {name: secret-{{ $name }}, mountPath: /etc/weir/secrets/{{ $name }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "weir.image" -}}
{{- include "weir.imageName" (dict "image" .Values.image "root" .) -}}
{{- end -}}

{{- define "weir.reportImage" -}}
{{- include "weir.imageName" (dict "image" .Values.report.image "root" .) -}}
{{- end -}}

{{- /* A tag may also be a digest. */ -}}
{{- define "weir.imageName" -}}
{{- $tag := .image.tag | default .root.Chart.AppVersion -}}
{{- printf "%s%s%s" .image.repository (hasPrefix "sha256:" $tag | ternary "@" ":") $tag -}}
{{- end -}}

{{- define "weir.ledgerClaim" -}}
{{- .Values.ledgerVolume.existingClaim | default (printf "%s-ledger" (include "weir.fullname" .)) -}}
{{- end -}}

{{- define "weir.reportClaim" -}}
{{- .Values.report.out.existingClaim | default (printf "%s-report" (include "weir.fullname" .)) -}}
{{- end -}}

{{- define "weir.claim" -}}
accessModes: {{ toJson .accessModes }}
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end -}}

{{- /* The config keys that need a restart. files/restart-keys.yaml lists the others of the same sections. */ -}}
{{- define "weir.restartKeys" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "listeners" (include "weir.listeners" . | fromYaml).listeners -}}
{{- $keys := dict -}}
{{- range $section, $live := (.Files.Get "files/restart-keys.yaml" | fromYaml).live -}}
{{- if hasKey $config $section -}}
{{- $value := get $config $section -}}
{{- range $each := kindIs "slice" $value | ternary $value (list $value) -}}
{{- range $key := kindIs "map" $each | ternary $live list -}}
{{- $_ := unset $each $key -}}
{{- end -}}
{{- end -}}
{{- $_ := set $keys $section $value -}}
{{- end -}}
{{- end -}}
{{- toJson $keys -}}
{{- end -}}

{{/* The port of the volume agent's metrics and probes; 9645 is the default of quotas.volumes.agent.admin_port. */}}
{{- define "weir.agentPort" -}}
{{ dig "quotas" "volumes" "agent" "admin_port" 9645 .Values.config | int }}
{{- end }}
