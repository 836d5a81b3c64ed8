{{- /* The pod of `weir report`. `run` has its memory and resources, and `every` if it stays. */ -}}
{{- define "weir.reportPod" -}}
{{- $root := .root -}}
{{- $run := .run -}}
{{- $report := .root.Values.report -}}
{{- $topic := $report.kafka.bootstrapServers -}}
{{- if not (or $root.Values.ledgerVolume.enabled $topic) -}}
{{- fail (printf "report.%s needs a ledger: enable ledgerVolume, or give report.kafka.bootstrapServers" .key) -}}
{{- end -}}
metadata:
  labels: {{- include "weir.labels" $root | nindent 4 }}
    app.kubernetes.io/component: report
spec:
  restartPolicy: {{ .restartPolicy }}
  serviceAccountName: {{ include "weir.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext: {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: report
      image: {{ include "weir.reportImage" $root }}
      imagePullPolicy: {{ $report.image.pullPolicy }}
      args:
        - weir
        - report
        {{- if $topic }}
        - --kafka={{ $topic }}
        - --topic={{ $report.kafka.topic }}
        {{- if $report.kafka.propertiesSecret }}
        - --kafka-properties=/etc/weir/kafka/kafka.properties
        {{- end }}
        - --events=/var/lib/weir-report/from-kafka
        {{- else }}
        - --events=/var/lib/weir-ledger
        {{- end }}
        {{- /* The number is the layout of the aggregates: `weir report` refuses a folder of another one. */}}
        - --out=/var/lib/weir-report/report-12
        - --memory={{ $run.memory }}
        {{- with $run.every }}
        - --every={{ . }}
        {{- end }}
        {{- range $report.extraArgs }}
        {{- if hasPrefix "--every" . }}
        {{- fail "report.extraArgs has --every: enable report.deployment and set its `every`" }}
        {{- end }}
        - {{ . | quote }}
        {{- end }}
      env:
        - {name: SPARK_LOCAL_DIRS, value: /tmp}
        - {name: HOME, value: /tmp}
      resources: {{- toYaml $run.resources | nindent 8 }}
      securityContext: {{- toYaml $root.Values.securityContext | nindent 8 }}
      volumeMounts:
        - {name: report, mountPath: /var/lib/weir-report}
        - {name: tmp, mountPath: /tmp}
        {{- if not $topic }}
        - {name: ledger, mountPath: /var/lib/weir-ledger, readOnly: true}
        {{- else if $report.kafka.propertiesSecret }}
        - {name: kafka, mountPath: /etc/weir/kafka, readOnly: true}
        {{- end }}
  volumes:
    - name: report
      persistentVolumeClaim: {claimName: {{ include "weir.reportClaim" $root }}}
    - name: tmp
      emptyDir: {}
    {{- if not $topic }}
    - name: ledger
      persistentVolumeClaim: {claimName: {{ include "weir.ledgerClaim" $root }}, readOnly: true}
    {{- else if $report.kafka.propertiesSecret }}
    - name: kafka
      secret: {secretName: {{ $report.kafka.propertiesSecret }}, defaultMode: 0440}
    {{- end }}
{{- end -}}
